"""Finds state that training code can reach and no checkpoint holds, in attributes, closures and script variables.

Guarantees: reads stored attributes only, so that no property and no other user code runs. Stops at a depth, at a number
of finds below each given object, and at objects of libraries. Main thread only.
"""

from __future__ import annotations

import array
import contextlib
import contextvars
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import math
import operator
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.manager.hooks import Unseen
from ckptkit.mindspore.inspect.attributes import attributes_of, met, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import BARE
from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.users import is_mindspores, is_of_users, is_users
from ckptkit.mindspore.inspect.values.digest import digest_of_value, in_words, is_plain, tensors_in, written

_MAX_DEPTH = 5
_MAX_FOUND = 1000  # per walk, so that a large network does not hide what comes after it
_MAX_ITEMS = 64
_AS_BYTES = (bytearray, array.array)
_AS_TEXT = (decimal.Decimal, fractions.Fraction, datetime.datetime, datetime.timedelta, itertools.count)
_BUFFERS = (io.StringIO, io.BytesIO)
_CODE_KINDS = (FunctionType, MethodType, GeneratorType, functools.partial)
_NUMBERS = (int, float, complex)
_HOLDERS = ("argparse.Namespace", "collections", "weakref")  # modules, or one class of them
_OF_CELLS = ("_params", "_buffers")  # where a cell keeps these

# Where a dataset node keeps the user's Python code. These are public attributes except two of BatchDataset; if those
# are missing, only a name is missing in a report.
_CODE = ("operations", "source", "sampler", "predicate", "per_batch_map", "batch_size_func")


class Reachability:
    """Collects plain values below given objects.

    Args:
        stored: The parameters and buffers that a checkpoint holds.
        weight_shapes: Shapes of the weights, by which accumulated gradients are recognised.

    Attributes:
        found: The values found, by path.
    """

    def __init__(self, stored: Sequence[ms.Tensor], weight_shapes: set[tuple[int, ...]]) -> None:
        self._stored = {id(one) for one in stored}
        self._weight_shapes = weight_shapes
        self._visited: dict[int, Unseen | None] = {}  # with what was found; None for what has parts
        self._full = 0  # the walk ends at this many finds
        self.found: dict[str, Unseen] = {}

    def walk(self, path: str, value: Any) -> None:
        """Collect ``value`` and what is below it."""
        self._full = len(self.found) + _MAX_FOUND
        self._walk(path, value, 0)

    def _walk(self, path: str, value: Any, depth: int) -> None:
        value = met(value)
        if depth > _MAX_DEPTH or len(self.found) >= self._full or isinstance(value, str | bytes | ModuleType):
            return
        if isinstance(value, ms.Parameter) and id(value) in self._stored:
            return
        if not isinstance(value, type(None) | bool | int | float):
            if id(value) in self._visited:
                # By each path: which of them leads to a value first may change as a loop runs.
                self._note(path, self._visited[id(value)])
                return
            self._visited[id(value)] = None
        if isinstance(value, type):
            self._walk_class(path, value, depth)
        elif isinstance(value, nn.Cell):
            self._walk_cell(path, value, depth)
        else:
            seen = self._seen(value)
            if id(value) in self._visited:
                self._visited[id(value)] = seen
            self._note(path, seen)
            for name, one in _below(value) if seen is None else _added(value):
                self._walk(f"{path}{name}", one, depth + 1)

    def _note(self, path: str, seen: Unseen | None) -> None:
        if seen is not None:
            self.found[path] = seen

    def _seen(self, value: Any) -> Unseen | None:
        """Return what a value holds, if it is plain and in no checkpoint."""
        if (plain := plain_form(value)) is not None:
            return Unseen(digest=digest_of_value(plain), text=f"{type(value).__name__}: {in_words(plain)}")
        if not is_plain(value) or any(id(one) in self._stored for one in tensors_in(value)):
            return None
        shapes = {one.shape for one in tensors_in(value) if self._may_be_gradient(one)}
        like = 2 * len(shapes) >= len(self._weight_shapes) > 0  # one array of a weight's shape may be anything
        words = f"{value.name}: {in_words(value)}" if isinstance(value, ms.Parameter) else in_words(value)
        return Unseen(digest=digest_of_value(value), text=words, like_weights=like)

    def _may_be_gradient(self, one: Any) -> bool:
        if isinstance(one, ms.Parameter) or math.prod(one.shape) <= 1 or one.shape not in self._weight_shapes:
            return False  # a parameter is more likely a weight of another network
        array = one.asnumpy() if isinstance(one, ms.Tensor) else one
        return array.dtype.kind == "f" and set(np.unique(array[:64])) != {0, 1}  # those of a mask

    def _walk_class(self, path: str, kind: type, depth: int) -> None:
        """Walk what a class of the user's keeps for all its objects."""
        if is_users(kind.__module__) and not issubclass(kind, enum.Enum):
            for name, value in vars(kind).items():
                if not name.startswith("__") and is_plain(value):
                    self._walk(f"{path}.{name}", value, depth + 1)

    def _walk_cell(self, path: str, cell: nn.Cell, depth: int) -> None:
        for name, one in cell.cells_and_names():
            self._visited[id(one)] = None
            here = f"{path}.{name}" if name else path
            own = own_attributes(one)
            held = itertools.chain.from_iterable((own.get(kept) or {}).items() for kept in _OF_CELLS)
            users = ((part, value) for part, value in own.items() if part not in BARE and is_of_users(one))
            for part, value in itertools.chain(held, users):
                if value is not None or is_of_users(one):
                    self._walk(f"{here}.{part}", value, depth + 1)


def plain_form(value: Any) -> Any:
    """Return the state of an object of the standard library that is not plain by itself; None for any other.

    Asks code in C only, none of the user's, and moves no iterator.
    """
    kind = type(value)
    if isinstance(value, enum.Enum):
        form: Any = value.name
    elif isinstance(value, _NUMBERS) and kind not in (bool, *_NUMBERS) and not isinstance(value, np.generic):
        base: Any = next(one for one in _NUMBERS if isinstance(value, one))
        form = written(base.__pos__(value))
    elif kind in _AS_BYTES:
        form = bytes(value)
    elif kind in _AS_TEXT:
        form = written(value)
    elif kind in _BUFFERS and not value.closed:
        form = (value.getvalue(), value.tell())
    elif kind.__module__ == "builtins" and kind.__name__.endswith("_iterator"):  # of a list, a tuple, a range, ...
        form = operator.length_hint(value)
    elif (kind.__module__, kind.__name__) == ("sqlite3", "Connection"):  # imported where it is used only
        form = value.total_changes
    else:
        form = None
    return form


def code_of(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the user's Python code in a pipeline, each with its place."""
    for node in _nodes(dataset):
        for attribute in _CODE:
            value = getattr(node, attribute, None)
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, FunctionType | MethodType) or (is_of_users(one) and not isinstance(one, type)):
                    yield f"{type(node).__name__}: {named_code(one)}", one


def _added(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a class of the user's adds to a plain value, such as to a number, a list or a generator."""
    if is_of_users(value) and not isinstance(value, enum.Enum):
        yield from ((f".{name}", one) for name, one in attributes_of(value))


def _below(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if isinstance(value, threading.local):  # without a `__dict__` in its class
        own = threading.local.__getattribute__(value, "__dict__")
        yield from ((f".{name}", one) for name, one in [*own.items()])
    elif is_of_users(value) or isinstance(value, (*_CODE_KINDS, SimpleNamespace)):
        yield from below(value)
    elif isinstance(value, weakref.ref):
        yield from (("()", one) for one in (value(),) if one is not None)
    elif kind is contextvars.ContextVar:
        with contextlib.suppress(LookupError):
            yield ".get()", value.get()
    elif isinstance(value, dict | list | tuple | deque):
        yield from itertools.islice(below(value), _MAX_ITEMS)
    elif _is_holder(kind):
        yield from below(value)
    elif is_mindspores(value):  # such as amp.DynamicLossScaler, which is not a cell
        yield from ((path, one) for path, one in below(value) if isinstance(one, ms.Parameter))


def _is_holder(kind: type) -> bool:
    """Return whether objects of a class of the standard library hold what the user puts in, as attributes."""
    return kind.__module__ in _HOLDERS or f"{kind.__module__}.{kind.__qualname__}" in _HOLDERS


def _nodes(dataset: Any) -> Iterator[Any]:
    if dataset is not None:
        yield dataset
        for child in getattr(dataset, "children", ()):
            yield from _nodes(child)


def named_code(code: Any) -> str:
    """Return the name of a function with its place, or of an object's class."""
    function = getattr(code, "__func__", code)
    if isinstance(function, FunctionType):
        where = function.__code__
        return f"{function.__qualname__}() in {Path(where.co_filename).name}:{where.co_firstlineno}"
    return type(code).__name__
