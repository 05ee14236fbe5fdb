"""Names the Python code of training data that draws what a resumed run cannot repeat, or that waits for training.

Guarantees: changes nothing, creates no iterator and runs no user code. Main thread only.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.dataset.transforms.py_transforms_util import Implementation

from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.named_objects import GENERATORS, NamedObject, attribute, named_objects, owner_of
from ckptkit.mindspore.observe.random_operators import Finding, RandomOperators, random_operators
from ckptkit.mindspore.observe.users import is_mindspores

# The two process-wide generators: the functions of the modules are methods of them.
_LIBRARIES = {owner_of(random.random): "Python's `random`", owner_of(np.random.rand): "`numpy.random`"}
_MADE_OF_SEEDS = (np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random)
_FIX = "Let it draw from a generator made of (seed, epoch, index of the sample), such as ckptkit.data.sample_rng"
_OF_ITS_OWN = "worker processes, each of which has its own: that is exact as long as each gets the same samples again"
_FOR_ALL = "a thread of this process: that is exact only as long as nothing else draws from it while data is read"


def find_in_data(data: Any, operators: RandomOperators) -> Iterator[Finding]:
    """Yield the findings of a pipeline or of the user's iterable, each once; those in cells go to ``operators``."""
    codes, findings = [*code_of_data(data)], dict[Finding | None, None]()
    for kind, code, threads in codes:
        for named in named_objects(code):
            where = f"{kind}: {named.where}: {named.name}"
            if issubclass(type(named.value), nn.Cell):
                operators.read(named.value, where)
            findings[_draw(where, named, threads, is_pipeline=isinstance(data, ds.Dataset))] = None
    yield from (finding for finding in findings if finding is not None)


def _draw(where: str, named: NamedObject, threads: int | None, *, is_pipeline: bool) -> Finding | None:
    owner, fix, certain = owner_of(named.value), _FIX, False
    is_draw = issubclass(type(owner), GENERATORS) and not named.name.endswith(("getstate", "get_state"))
    if id(named.value) in random_operators():
        why = "it draws from a generator of MindSpore's, which reading the data again does not set back"
    elif is_pipeline and named.is_called_bare and any(named.value is maker for maker in _MADE_OF_SEEDS):
        why, certain = "it takes its seed from the operating system, so that no two runs agree", True
    elif is_pipeline and is_draw and threads is not None and threads > 1:
        why, certain = f"it is called by {threads} threads in no fixed order, so that no two runs agree", True
        fix = f"{_FIX}, or set num_parallel_workers=1 or python_multiprocessing=True"
    elif is_pipeline and is_draw and owner in _LIBRARIES:  # a replay restores the state of others
        why = f"it draws from {_LIBRARIES[owner]} in {_OF_ITS_OWN if threads is None else _FOR_ALL}"
    else:
        return None
    return Finding("pipeline", where, why, fix, certain)


def code_of_data(data: Any) -> Iterator[tuple[str, Any, int | None]]:
    """Yield the Python code of data: where it is, the callable, how many threads run it (None: other processes)."""
    if not isinstance(data, ds.Dataset):
        yield from ((type(data).__name__, code, 1) for code in _methods(data))
        return
    threads: int | None = getattr(data, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()
    if getattr(data, "python_multiprocessing", False) and not (threads == 1 and isinstance(data, ds.GeneratorDataset)):
        threads = None
    # Names that are private to MindSpore are optional: a test fails if it moves them.
    operations, source, sampler = (getattr(data, name, None) for name in ("operations", "source", "sampler"))
    given = filter(callable, (getattr(data, name, None) for name in ("per_batch_map", "predicate")))
    for code in (*_operations(operations), *given, *_methods(source)):
        yield type(data).__name__, code, threads
    for code in (*_methods(sampler), *_methods(own_attributes(sampler).get("sampler"))):
        yield type(data).__name__, code, 1
    for child in data.children:
        yield from code_of_data(child)


def _methods(source: Any) -> Iterator[Any]:
    """Yield what asking ``source`` for items calls."""
    is_code = isinstance(source, (types.FunctionType, types.MethodType))  # which makes a generator
    names = ("__getitem__", "__iter__", "__next__", "__call__")
    methods = [source] if is_code else [attribute(source, name) for name in names]
    yield from (method for method in methods if is_code or type(method) is types.MethodType)


def _operations(given: Any, *, in_python: bool = False) -> Iterator[Any]:
    """Yield the operations of a map that run in Python; those of MindSpore that can do both go on as the one before."""
    for operation in given if isinstance(given, (list, tuple)) else [] if given is None else [given]:
        body = getattr(operation, "implementation", None)
        in_python = body == Implementation.PY or (in_python and body is None)
        yield from _operations(getattr(operation, "transforms", None), in_python=in_python)
        own = attribute(operation, "_execute_py") if in_python else getattr(operation, "transform", None)
        if not is_mindspores(operation):
            yield operation
        elif type(own) in (types.FunctionType, types.MethodType):
            yield own  # of MindSpore, or a function of the user's that it wraps
