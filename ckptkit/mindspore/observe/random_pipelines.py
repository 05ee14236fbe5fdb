"""Names the Python code of training data that draws what a resumed run cannot repeat, or that waits for training.

Guarantees: changes nothing, creates no iterator and runs no user code. Main thread only.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.dataset.transforms.py_transforms_util import Implementation

from ckptkit.mindspore.observe.attributes import own_attributes
from ckptkit.mindspore.observe.finding import Finding
from ckptkit.mindspore.observe.named_objects import NamedObject, attribute, named_objects, owner_of
from ckptkit.mindspore.observe.random_operators import GENERATORS, RandomOperators, functional
from ckptkit.mindspore.observe.users import is_mindspores

# The two process-wide generators; the functions of the modules are methods of them.
_PYTHON = random.random.__self__  # type: ignore[attr-defined]
_NUMPY = np.random.rand.__self__  # type: ignore[attr-defined]
_READS = ("getstate", "get_state")  # these draw nothing and change nothing
_MADE_OF_SEEDS = (np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random)
_ITERATES = ("__getitem__", "__iter__", "__next__", "__call__")
_FIX = "Let it draw from a generator made of (seed, epoch, index of the sample), such as ckptkit.data.sample_rng"


def find_in_data(data: Any, operators: RandomOperators) -> Iterator[Finding]:
    """Yield the findings of a pipeline, or of an iterable of the user's that makes batches, each once.

    Args:
        data: The pipeline or the iterable.
        operators: Those of the training; get what is found in cells that the code names.
    """
    findings: dict[Finding, None] = {}
    for name, code, threads in code_of_data(data):
        for named in named_objects(code, _is_read):
            where = f"{name}: {named.where}"
            if issubclass(type(named.value), nn.Cell):
                operators.read_named(named, where)
            elif id(named.value) in functional():
                why = "it draws from a generator of MindSpore's, which reading the data again does not set back"
                findings[Finding("pipeline", f"{where}: {named.name}", why, _FIX, certain=False)] = None
            elif isinstance(data, ds.Dataset) and (finding := _draw(named, where, threads)):
                findings[finding] = None
    yield from findings
    yield from _waiting(data) if isinstance(data, ds.Dataset) else ()


def code_of_data(data: Any) -> Iterator[tuple[str, Any, int | None]]:
    """Yield the Python code of data: where it is, the callable, how many threads run it (None: other processes)."""
    if not isinstance(data, ds.Dataset):
        yield from ((type(data).__name__, code, 1) for code in _methods(data, _ITERATES))
        return
    for node in _nodes(data):
        yield from ((type(node).__name__, code, _threads(node)) for code in _worker_code(node))
        yield from ((type(node).__name__, code, 1) for code in _single_code(node))


def _draw(named: NamedObject, where: str, threads: int | None) -> Finding | None:
    where = f"{where}: {named.name}"
    if named.without_seed and any(named.value is function for function in _MADE_OF_SEEDS):
        return Finding(
            "pipeline", where, "it takes its seed from the operating system, so that no two runs agree", _FIX
        )
    owner = owner_of(named.value)
    if not issubclass(type(owner), GENERATORS) or named.name.endswith(_READS):
        return None
    if threads is not None and threads > 1:
        why = f"it is called by {threads} threads in no fixed order, so that no two runs agree"
        return Finding("pipeline", where, why, f"{_FIX}, or set num_parallel_workers=1 or python_multiprocessing=True")
    if owner is not _PYTHON and owner is not _NUMPY:
        return None  # a replay of the pipeline restores its state
    library = "Python's `random`" if owner is _PYTHON else "`numpy.random`"
    why = (
        f"it draws from {library} in worker processes, each of which has its own: that is exact as long as each "
        "gets the same samples again, which nothing guarantees"
        if threads is None
        else f"it draws from {library} in a thread of this process, which has one for all: that is exact only as long "
        "as nothing else draws from it while data is read"
    )
    return Finding("pipeline", where, why, _FIX, certain=False)


def _waiting(dataset: ds.Dataset) -> Iterator[Finding]:
    codes = [code for _, code, _ in code_of_data(dataset)]
    own = [
        code for code in codes if str(getattr(code, "__module__", "")).partition(".")[0] not in ("mindspore", "ckptkit")
    ]
    for name in dataset.get_sync_notifiers() if own else ():
        code = getattr(own[0], "__qualname__", type(own[0]).__qualname__)
        why = f"{code} waits for training there; if it reads what training changes, a replay gives other batches"
        fix = "Let it depend on (seed, epoch, index of the sample) only, and remove sync_wait"
        yield Finding("pipeline", f'sync_wait("{name}")', why, fix)


def _nodes(dataset: ds.Dataset) -> Iterator[ds.Dataset]:
    yield dataset
    for child in dataset.children:
        yield from _nodes(child)


def _threads(node: ds.Dataset) -> int | None:
    """Return how many threads of this process run what `_worker_code` yields; None if other processes run it."""
    workers: int = getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()
    if not getattr(node, "python_multiprocessing", False):
        return workers
    return 1 if workers == 1 and isinstance(node, ds.GeneratorDataset) else None


def _worker_code(node: ds.Dataset) -> Iterator[Any]:
    """Yield what a node's workers call per sample. Private names are optional: a test fails if MindSpore moves them."""
    yield from _operations(getattr(node, "operations", None))
    yield from filter(callable, (getattr(node, name, None) for name in ("per_batch_map", "predicate")))
    yield from _methods(getattr(node, "source", None), _ITERATES)


def _single_code(node: ds.Dataset) -> Iterator[Any]:
    """Yield what a single thread calls, regardless of the number of workers."""
    yield from filter(callable, (getattr(node, name, None) for name in ("batch_size_func", "element_length_function")))
    sampler = getattr(node, "sampler", None)
    while sampler is not None:
        own = own_attributes(sampler)
        yield from (*_methods(sampler, ("__iter__",)), *_methods(own.get("sampler"), ("__iter__", "__next__")))
        sampler = own.get("child_sampler")


def _methods(source: Any, names: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(source, (types.FunctionType, types.MethodType)):
        yield source  # makes a generator
    elif source is not None:
        yield from (method for name in names if isinstance(method := attribute(source, name), types.MethodType))


def _operations(given: Any, *, in_python: bool = False) -> Iterator[Any]:
    """Yield the operations of a map that run in Python, and those inside them.

    An operation of MindSpore with two implementations uses that of the operation before it.
    """
    for operation in given if isinstance(given, (list, tuple)) else [given]:
        if not is_mindspores(operation):
            yield from () if operation is None else (operation,)
            continue
        body = getattr(operation, "implementation", None)
        in_python = body == Implementation.PY or (in_python and body is None)
        yield from _operations(getattr(operation, "transforms", None), in_python=in_python)
        if in_python:
            yield from _methods(operation, ("_execute_py",))
        elif callable(getattr(operation, "transform", None)):
            yield operation.transform  # a function wrapped by MindSpore


def _is_read(module: str) -> bool:
    root = module.partition(".")[0]
    if root == "mindspore":  # its Python augmentations are read like user code
        return module.startswith(("mindspore.dataset.vision", "mindspore.dataset.transforms"))
    return root not in ("numpy", "ckptkit") and root not in sys.stdlib_module_names
