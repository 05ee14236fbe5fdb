"""Finds Python code in a data pipeline that cannot be exact: it waits for training, or shares a generator.

Guarantees: changes nothing, creates no iterator and runs no user code. Reads the Python code that the pipeline would
run (see `uses`). Main thread only.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore.dataset.transforms.py_transforms_util import Implementation

from ckptkit.mindspore.inspect.attribute_uses import (
    assigned_in_steps,
    carried_by,
    changed_in_place,
    counted_by,
    named_by,
)
from ckptkit.mindspore.inspect.attributes import attribute, own_attributes, owner_of
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.cells import Operators
from ckptkit.mindspore.inspect.code.bytecode import Use, uses
from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.users import is_mindspores, is_of_users

# The two process-wide generators; the module functions are methods of them.
_PYTHON = random.random.__self__  # type: ignore[attr-defined]
_NUMPY = np.random.rand.__self__  # type: ignore[attr-defined]
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_CONTAINERS = (list, tuple, dict, set, deque, np.ndarray)
_GATHERING = (list, set, deque)
_COUNTS = (int, float, dict, np.ndarray, *_GATHERING)
_READS = ("getstate", "get_state")  # these draw nothing and change nothing
_FRESH = (np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random)
_FIX = "Let it draw from a generator made of (seed, epoch, index of the sample), such as ckptkit.data.sample_rng"


def find_in_pipeline(dataset: ds.Dataset) -> Iterator[Finding]:
    """Yield the findings of the pipeline that ends in ``dataset``, each once."""
    seen = set()
    for node in _nodes(dataset):
        for code, threads in ((_worker_code(node), _threads(node)), (_single_code(node), 1)):
            for use in (use for one in code for use in uses(one, _enters)):
                found = _judged(node, use, threads)
                if found is not None and found not in seen:
                    seen.add(found)
                    yield found
    yield from _waits_for_training(dataset)


def find_random_operators(data: Any) -> Iterator[Finding]:
    """Yield the random operators of MindSpore, and the cells with some, that the code of data names, each once.

    Args:
        data: What is read again to reach a place in it: a pipeline, an iterable of the user's, or None.
    """
    operators, seen = Operators(), set()
    for name, code in _named_code(data):
        for use in uses(code, _enters):
            for found in operators.in_data(use, f"{name}: {use.where}"):
                if found not in seen:
                    seen.add(found)
                    yield found


def _named_code(data: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(data, ds.Dataset):
        yield from ((type(data).__name__, code) for code in _methods(data, ("__iter__", "__getitem__", "__next__")))
        return
    for node in _nodes(data):
        yield from ((type(node).__name__, code) for code in (*_worker_code(node), *_single_code(node)))


def find_kept_by_stateless(dataset: ds.Dataset) -> Iterator[Finding]:
    """Yield what code keeps from one sample to the next, in a pipeline that is declared to keep nothing."""
    for node in _nodes(dataset):
        for one in (*_worker_code(node), *_single_code(node)):
            owner = one if owner_of(one) is None else owner_of(one)
            kept = _kept_by(owner) if is_of_users(owner) else []
            if kept:
                yield Finding(
                    "pipeline",
                    f"{type(node).__name__}: {type(owner).__name__}",
                    f'it keeps {", ".join(kept)} from one sample to the next, and augmentation="stateless" denies that',
                    "Let it depend on its input only, or leave augmentation= out: samples are read again then",
                    certain=False,
                )


def _kept_by(owner: Any) -> list[str]:
    """Return what methods count with or gather, and the generators that they draw from without making them.

    A mapping that only gets new items is more likely a cache of what is made of the sample.
    """
    kind: Any = type(owner)
    own = own_attributes(owner)
    counted = {name for name in counted_by(kind) if isinstance(own.get(name), _COUNTS) and type(own[name]) is not bool}
    gathered = {name for name in carried_by(kind) & changed_in_place(kind) if isinstance(own.get(name), _GATHERING)}
    drawing = {name for name, value in own.items() if isinstance(value, GENERATORS)}
    return sorted(counted | gathered | ((drawing & named_by(kind, in_steps=True)) - assigned_in_steps(kind)))


def read_here(data: Any) -> list[Any]:
    """Return what training may change while the data are read: functions that this process calls, and containers.

    Args:
        data: A pipeline, or an iterable of the user's that makes batches.
    """
    codes = [] if isinstance(data, ds.Dataset) else [*_methods(data, ("__iter__", "__getitem__", "__next__"))]
    for node in _nodes(data) if isinstance(data, ds.Dataset) else ():
        codes += [*(_worker_code(node) if _threads(node) is not None else ()), *_single_code(node)]
    sources = sources_of(data)
    held = [one for source in sources for _, one in below(source) if isinstance(one, _CONTAINERS)]
    inner = [each for one in held if isinstance(one, tuple) for each in one if isinstance(each, _CONTAINERS)]
    return [*codes, *(one for one in (*sources, *held, *inner) if isinstance(one, _CONTAINERS))]


def sources_of(data: Any) -> list[Any]:
    """Return the objects of which a pipeline, or an iterable of the user's, makes its batches."""
    if not isinstance(data, ds.Dataset):
        return [data]
    return [source for node in _nodes(data) if (source := getattr(node, "source", None)) is not None]


def _waits_for_training(dataset: ds.Dataset) -> Iterator[Finding]:
    codes = (code for node in _nodes(dataset) for code in (*_worker_code(node), *_single_code(node)))
    own = next((code for code in codes if _module(code) not in ("mindspore", "ckptkit")), None)
    for name in dataset.get_sync_notifiers() if own is not None else ():
        code = getattr(own, "__qualname__", type(own).__qualname__)
        why = f"{code} waits for training there; if it reads what training changes, a replay gives other batches"
        fix = "Let it depend on (seed, epoch, index of the sample) only, and remove sync_wait"
        yield Finding("pipeline", f'sync_wait("{name}")', why, fix)


def _judged(node: ds.Dataset, use: Use, threads: int | None) -> Finding | None:
    where = f"{type(node).__name__}: {use.where}: {use.name}"
    owner = owner_of(use.target)
    if use.called_empty and any(use.target is one for one in _FRESH):
        why = "it takes its seed from the operating system, so that no two runs agree"
        return Finding("pipeline", where, why, _FIX)
    if not isinstance(owner, GENERATORS) or use.target.__name__ in _READS:
        return None
    shared = owner is _PYTHON or owner is _NUMPY
    if threads is not None and threads > 1:
        why = f"it is called by {threads} threads in no fixed order, so that no two runs agree"
        return Finding("pipeline", where, why, f"{_FIX}, or set num_parallel_workers=1 or python_multiprocessing=True")
    if not shared:
        return None  # a replay of the pipeline restores its state
    library = "Python's `random`" if owner is _PYTHON else "`numpy.random`"
    if threads is None:
        why = (
            f"it draws from {library} in worker processes, each of which has its own: that is exact as long as each "
            "gets the same samples again, which nothing guarantees"
        )
    else:
        why = (
            f"it draws from {library} in a thread of this process, which has one for all: that is exact only as long "
            "as nothing else draws from it while data is read"
        )
    return Finding("pipeline", where, why, _FIX, certain=False)


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
    """Yield what a node's workers call per sample. Private names are optional: MindSpore may move them."""
    yield from _operations(getattr(node, "operations", None))
    for name in ("per_batch_map", "predicate"):
        if callable(getattr(node, name, None)):
            yield getattr(node, name)
    yield from _methods(getattr(node, "source", None), ("__getitem__", "__iter__", "__next__", "__call__"))


def _single_code(node: ds.Dataset) -> Iterator[Any]:
    """Yield what a single thread calls, regardless of the number of workers."""
    for name in ("batch_size_func", "element_length_function"):
        if callable(getattr(node, name, None)):
            yield getattr(node, name)
    sampler = getattr(node, "sampler", None)
    while sampler is not None:
        yield from _methods(sampler, ("__iter__",))
        own = own_attributes(sampler)
        yield from _methods(own.get("sampler"), ("__iter__", "__next__"))  # in an IterSampler
        sampler = own.get("child_sampler")


def _methods(one: Any, names: tuple[str, ...]) -> Iterator[Any]:
    if type(one) in _FUNCTIONS:
        yield one  # a function that makes a generator
        return
    for name in names:
        method = attribute(one, name) if one is not None else None
        if callable(method):
            yield method


def _operations(given: Any, *, in_python: bool = False) -> Iterator[Any]:
    """Yield the operations of a map that run in Python, and those inside them.

    An operation of MindSpore with two implementations uses that of the operation before it.
    """
    for one in given if isinstance(given, (list, tuple)) else [given]:
        if one is None:
            continue
        if not is_mindspores(one):
            yield one
            continue
        body = getattr(one, "implementation", None)
        in_python = body == Implementation.PY or (in_python and body is None)
        yield from _operations(getattr(one, "transforms", None), in_python=in_python)
        if in_python:
            yield from _methods(one, ("_execute_py",))
        elif callable(getattr(one, "transform", None)):
            yield one.transform  # a function wrapped by MindSpore


def _module(code: Any) -> str:
    return str(getattr(code, "__module__", "")).partition(".")[0]


def _enters(module: str) -> bool:
    root = module.partition(".")[0]
    if root == "mindspore":  # its Python augmentations are read like user code
        return module.startswith(("mindspore.dataset.vision", "mindspore.dataset.transforms"))
    return root not in ("numpy", "ckptkit") and root not in sys.stdlib_module_names
