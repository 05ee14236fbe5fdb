"""Records what the Python code of a data pipeline makes of each sample.

Guarantees: a pipeline with recorded operations gives the same samples; operations that run in worker processes are
recorded too. Does not see operations that MindSpore runs in C++. `record_operations` is for the training thread; what
it puts in place runs in any thread or process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import mindspore.dataset as ds

from ckptkit.manager.hooks import Recorded
from ckptkit.mindspore.inspect.reachability import named_code
from ckptkit.mindspore.inspect.users import is_of_users
from ckptkit.mindspore.inspect.values.digest import digest_of_value, is_plain

Write = Callable[[Recorded], None]


def record_operations(dataset: Any, write: Write) -> None:
    """Write an event for every call of the user's code in ``dataset`` from now on.

    The nodes of a pipeline are copied when an iterator is made, but not the code in them.
    """
    if not isinstance(dataset, ds.Dataset):
        return
    for at, node in enumerate(_sources_first(dataset)):
        _record_node(node, f"{at}", write)


def _record_node(node: ds.Dataset, at: str, write: Write) -> None:
    kind = type(node).__name__
    operations = getattr(node, "operations", None)
    if isinstance(operations, list):
        operations[:] = [
            _recorded(one, at, kind, write) if _is_own_code(one) else one  # MindSpore's own run in C++
            for one in operations
        ]
    for name in ("per_batch_map", "predicate"):
        if _is_own_code(getattr(node, name, None)):
            setattr(node, name, _recorded(getattr(node, name), at, kind, write))
    source = getattr(node, "source", None)
    if source is not None and hasattr(type(source), "__getitem__") and is_of_users(source):
        _record_source(source, at, kind, write)


def _recorded(code: Any, at: str, kind: str, write: Write) -> Any:
    where = f"{kind}: {named_code(code)}"

    @functools.wraps(code, updated=())
    def recorded(*columns: Any) -> Any:
        given = _digest(columns)  # before the call, which may change them
        made = code(*columns)
        _emit(write, at, where, given, made)
        return made

    return recorded


def _record_source(source: Any, at: str, kind: str, write: Write) -> None:
    """Replace the class of a source by a recording subclass: Python looks for ``__getitem__`` there only."""
    base, where = type(source), f"{kind}: {named_code(source)}"

    def get(self: Any, index: Any) -> Any:
        made = base.__getitem__(self, index)
        _emit(write, at, where, _digest((index,)), made)
        return made

    names = {"__getitem__": get, "__module__": base.__module__, "__qualname__": base.__qualname__, "__slots__": ()}
    source.__class__ = type(base.__name__, (base,), names)


def _emit(write: Write, at: str, where: str, given: str | None, made: Any) -> None:
    found = _digest(made)
    if given is not None and found is not None:
        write(Recorded(event="sample", kind=at, where=where, values={"input": given, "output": found}))


def _digest(value: Any) -> str | None:
    return digest_of_value(value) if is_plain(value) else None


def _is_own_code(one: Any) -> bool:
    return callable(one) and not isinstance(one, type) and not str(type(one).__module__).startswith("mindspore")


def _sources_first(node: ds.Dataset) -> Iterator[ds.Dataset]:
    for child in node.children:
        yield from _sources_first(child)
    yield node
