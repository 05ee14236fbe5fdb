"""Finds values that a training changes although no code that was read changes them.

The other modules read code and know what it changes. This one finds what else changes, by code that cannot be read:
methods of the standard library's objects, iterators, partial functions, and code without source.

Guarantees: reads existing objects, of user classes, of Python's containers and of a few classes of its library; runs no
user code. Of large containers and arrays, a part is compared. Objects of installed libraries, files and threads are not
looked into. Another thread may change what is read: such a container is left out. Main thread only.
"""

from __future__ import annotations

import collections
import configparser
import contextvars
import dis
import enum
import functools
import io
import itertools
import logging
import operator
import os
import queue
import random
import re
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
import xxhash
from mindspore import nn, ops
from mindspore.train import Callback

from ckptkit.mindspore.inspect.attributes import attributes_of, own_attributes, unwrapped
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS, beside_bare
from ckptkit.mindspore.inspect.code.names import imported_in, names_in, variables_in
from ckptkit.mindspore.inspect.contents import item_suffix
from ckptkit.mindspore.inspect.frames import locals_of
from ckptkit.mindspore.inspect.loops.objects import ITEMS, Objects, place_in
from ckptkit.mindspore.inspect.loops.scope import Place
from ckptkit.mindspore.inspect.users import is_installed, is_library_class, is_users
from ckptkit.mindspore.inspect.values.digest import ATOMS, tensor_bytes, written
from ckptkit.mindspore.inspect.values.roots import Root
from ckptkit.mindspore.rng import generator_state

_MOST, _MOST_OF_ONE = 10_000, 1_000  # objects, in all and by one root
_DEEPEST = 12
_FIRST, _LAST = 128, 16  # items of a container
_BYTES = 1 << 16  # of an array
# Classes of Python's library whose attributes are values: those of the user's programs, and not of the machine's state.
_HOLDERS = (
    *(types.SimpleNamespace, threading.Event, threading.Semaphore, threading.local, queue.Queue, queue.SimpleQueue),
    *(configparser.RawConfigParser, configparser.SectionProxy, collections.UserDict, collections.UserList),
)
_CONTAINERS: tuple[Any, ...] = (dict, list, tuple, deque, set, frozenset)
_OF_ITERTOOLS = tuple(one for one in vars(itertools).values() if isinstance(one, type))
_ITERABLES: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), range(1), range(1 << 70))
_ITERATORS = tuple(type(iter(one)) for one in _ITERABLES)
_PAIRED = (enumerate, zip, map, filter, reversed)
_BY_NAME = (".", ": ")  # before an attribute, and before a variable that a function names
_BY_ANY_NAME = ({"globals"}, {"sys", "modules"})  # `globals()`, and the module itself as `sys.modules[__name__]`
_IN_MEMORY = (io.StringIO, io.BytesIO)


class ChangedValues:
    """Looks, after 1, 2, 4, 8 and so on micro-steps, for what has changed since the first of them.

    Attributes:
        written: Places that code which was read writes; they are not looked at.
    """

    def __init__(self) -> None:
        self.written: set[Place] = set()
        self._steps = 0
        self._before: dict[Hashable, _Values] = {}
        self._told: set[str] = set()

    def is_due(self) -> bool:
        """Count a micro-step; return whether to look after it."""
        self._steps += 1
        return self._steps & (self._steps - 1) == 0

    def look(self, roots: Iterable[Root], known: Iterable[Any]) -> tuple[str, ...]:
        """Return the expressions of what has changed since the first call, each once; of containers, of the whole.

        An attribute that an object, or a variable that a module, did not have at the first call, counts.

        Args:
            roots: From where values are reached. Those that there were at the first call are compared.
            known: Objects that checkpoints hold by name; `Stored` for one of which they hold some attributes.
        """
        now = _values_of(roots, [*known], self.written)
        if not self._before:
            self._before = now
            return ()
        other: list[str] = []
        for key in self._before.keys() & now.keys():
            other += map(_whole, self._before[key].differs(now[key]))
        new = sorted({*other} - self._told)
        self._told.update(new)
        return tuple(new)


class _Values:
    """Holds what tells the values that are reached from one root.

    Attributes:
        texts: What tells each, by its expression.
        owners: Of each attribute, and each variable that a function names, the expression of what has it.
        opened: The expressions of the objects whose attributes are all known.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.owners: dict[str, str] = {}
        self.opened: set[str] = set()

    def differs(self, now: _Values) -> Iterator[str]:
        """Yield the expressions of values that have changed, or are new in an opened object; keep the new ones."""
        for path, text in now.texts.items():
            owner = now.owners.get(path)
            is_new = owner in self.opened and self.texts.get(owner) == now.texts.get(owner)
            before = self.texts.setdefault(path, "" if is_new else text)
            if before != text:
                yield path
        self.opened |= now.opened


def _values_of(roots: Iterable[Root], known: Iterable[Any], written: Collection[Place]) -> dict[Hashable, _Values]:
    """Return what tells the values that can be reached, by root and expression.

    Args:
        roots: Where to begin.
        known: As for `ChangedValues.look`. Left out.
        written: Places. Left out, with what lies below.
    """
    objects = Objects(known)
    found: dict[Hashable, _Values] = {}
    seen: dict[int, Any] = {}  # with the objects, so that no id is used twice
    for root in roots:
        values = found.setdefault(root.key, _Values())
        most = min(len(seen) + _MOST_OF_ONE, _MOST)
        waiting = deque([(root.path, root.value, root.place, 0)])
        while waiting and len(seen) < most:
            path, one, place, depth = waiting.popleft()
            if place in written or _is_left_out(one, objects, written):
                continue
            text = _text(one)
            if text is not None or issubclass(type(one), _HOLDERS) or _is_looked_into(type(one)):
                values.texts[path] = text if text is not None else f"{type(one).__qualname__} {id(one)}"
            if text is not None or id(one) in seen or depth == _DEEPEST:
                continue
            seen[id(one)] = one
            values.opened.add(path)
            for part, value, where in _open(one, objects, written):
                waiting.append((path + part, value, where, depth + 1))
                if part.startswith(_BY_NAME):
                    values.owners[path + part] = path
        if waiting:
            values.opened.clear()
    return found


def _is_left_out(one: Any, objects: Objects, written: Collection[Place]) -> bool:
    return type(one) not in ATOMS and (objects.is_known(one) or Place(id(one), ITEMS) in written)


def _open(one: Any, objects: Objects, written: Collection[Place]) -> Iterator[_Part]:
    """Yield the parts of an object which no checkpoint holds and no code that was read writes."""
    of_classes = {id(kind) for kind in type(one).__mro__}  # code may have written the attribute of a class
    for part, value, where in _parts(one):
        name = where.name if where is not None else ITEMS
        if not objects.stores(one, name) and not any(Place(kind, name) in written for kind in of_classes):
            yield part, value, where


def _whole(path: str) -> str:
    return re.sub(r"(\[[^\]]*\]|\{0?\})+$", "", path)


def _text(one: Any) -> str | None:
    """Return what tells a single value; None for what has parts, or is not looked into."""
    kind = type(one)
    if kind in ATOMS or (issubclass(kind, np.generic) and kind.__module__ == "numpy"):
        return f"{kind.__name__} {_digest(written(one))}"
    if kind in (ms.Tensor, np.ndarray, bytearray):
        return _digest(_bytes_of(one))
    if issubclass(kind, GENERATORS) and not issubclass(kind, random.SystemRandom):
        return _digest(repr(generator_state(one)))
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__} {own_attributes(one).get('_name_')}"
    if kind in _IN_MEMORY:
        return "closed" if one.closed else f"at {one.tell()}"
    return written(one) if kind is itertools.count else _rows_changed(one)


def _rows_changed(one: Any) -> str | None:
    """Return how many rows a connection has changed; None if it is another object, or another thread's."""
    sqlite = sys.modules.get("sqlite3")  # not every Python has it
    if sqlite is None or type(one) is not sqlite.Connection:
        return None
    try:
        return f"after {one.total_changes} changes"
    except sqlite.Error:
        return "closed"


def _bytes_of(one: Any) -> bytes:
    """Return the contents of an array or tensor; of a large array, a part, and of a large tensor, nothing."""
    if type(one) is bytearray:
        return bytes(one[:_BYTES])
    if type(one) is ms.Tensor:  # reading it may copy all of it
        return one.asnumpy().tobytes() if not one.has_init and tensor_bytes(one) <= _BYTES else b""
    if one.dtype.hasobject:
        return b""
    step = max(1, one.nbytes // _BYTES)
    return np.ascontiguousarray(one if step == 1 else one.flat[::step]).tobytes()


def _digest(text: str | bytes) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode() if isinstance(text, str) else text)


_Part = tuple[str, Any, Place | None]


def _parts(one: Any) -> Iterator[_Part]:
    """Yield what an object holds: the suffix, the value, and its place if code may write it by that place."""
    kind = type(one)
    if issubclass(kind, _CONTAINERS):
        yield from _items(one)
    if kind in _CONTAINERS or issubclass(kind, (ms.Tensor, str)):
        return
    if kind is types.MethodType:
        yield from (("", one.__self__, None), ("", one.__func__, None))
    elif kind is types.FunctionType:
        yield from _of_function(one)
    elif issubclass(kind, functools.partial):
        yield from ((f"({at})", value, None) for at, value in enumerate((one.func, *one.args, *one.keywords.values())))
    elif kind is types.GeneratorType:
        yield from _of_generator(one)
    elif kind is contextvars.ContextVar:
        yield "", one.get(None), Place(id(one), ITEMS)
    elif kind in (*_ITERATORS, *_PAIRED, *_OF_ITERTOOLS):
        yield from _of_iterator(one)
    elif kind in (types.BuiltinMethodType, types.MethodWrapperType):
        yield "", one.__self__ if issubclass(type(one.__self__), GENERATORS) else None, None
    elif issubclass(kind, type):
        yield from _of_class(one)
    elif issubclass(kind, _HOLDERS) or _is_looked_into(kind):
        yield from _attributes(one)
    else:
        yield from _of_library(one)


def _of_library(one: Any) -> Iterator[_Part]:
    if one is os:
        yield ".environ", dict(os.environ), None
    elif type(one) is types.ModuleType and _is_without_source(one):
        own = vars(one).items()
        yield from ((f".{name}", value, place_in(one, name)) for name, value in own if not name.startswith("__"))
    elif issubclass(type(one), (logging.Filterer, logging.LoggerAdapter)):
        yield from ((f".{name}", own_attributes(one).get(name), None) for name in ("filters", "handlers", "extra"))
    elif issubclass(type(one), (nn.Cell, Callback, ops.Primitive)):  # of MindSpore: what it calls may be the user's
        is_whole = type(one) is Callback  # with methods of the user's
        yield from (each for each in _attributes(one) if is_whole or _is_called(each[1]))


def _is_without_source(module: types.ModuleType) -> bool:
    """Return whether the user's code has made the module, so that its functions cannot be read."""
    name = vars(module).get("__name__")
    return is_users(name) and name != "__main__" and "__file__" not in vars(module)


def _is_called(one: Any) -> bool:
    return callable(one) and not issubclass(type(one), nn.Cell)


def _items(one: Any) -> Iterator[_Part]:
    place, base = Place(id(one), ITEMS), next(kind for kind in _CONTAINERS if issubclass(type(one), kind))
    try:
        yield "{}", base.__len__(one), place
        if base is dict:
            pairs = itertools.islice(dict.items(one), _FIRST)
            yield from [_of_item(one, at, key, value) for at, (key, value) in enumerate(pairs)]
        elif base in (set, frozenset):
            some = itertools.islice(base.__iter__(one), _FIRST)
            yield "{0}", _digest(repr(sorted(written(each) for each in some if type(each) in ATOMS))), place
        else:
            first = [*itertools.islice(base.__iter__(one), _FIRST)]
            last = [*one[-_LAST:]] if type(one) in (list, tuple) and len(one) > _FIRST else []
            yield from [(f"[{at}]", value, place) for at, value in enumerate([*first, *last])]
    except RuntimeError:  # another thread changes it
        return


def _of_item(one: Any, at: int, key: Any, value: Any) -> _Part:
    return item_suffix(key, at), value, Place(id(one), key if type(key) is str else ITEMS)  # items may be attributes


def _of_function(one: types.FunctionType) -> Iterator[_Part]:
    code = one.__code__
    for name, cell in zip(code.co_freevars, one.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents, Place(code.co_filename, name)
        except ValueError:  # a variable without a value yet
            continue
    yield from ((f"({at})", value, None) for at, value in enumerate(one.__defaults__ or ()))
    yield from ((f"({name})", value, None) for name, value in (one.__kwdefaults__ or {}).items())
    yield from ((f".{name}", value, place_in(one, name)) for name, value in vars(one).items())
    module = one.__globals__
    if _is_looked_into(one):
        is_any = any(each.issubset(code.co_names) for each in _BY_ANY_NAME)
        names = [*module] if is_any else variables_in(code)
        yield from ((f": {name}", module[name], Place(id(module), name)) for name in names if name in module)
        homes = {name: module[name] for name in names if issubclass(type(module.get(name)), types.ModuleType)}
        homes = {name: home for name, home in homes.items() if is_users(home.__name__)} | imported_in(one)
        for name, home in homes.items():
            held = own_attributes(home)
            parts = [part for part in names_in(code) if part in held]
            yield from ((f": {name}.{part}", held[part], place_in(home, part)) for part in parts)


def _of_generator(one: types.GeneratorType[Any, Any, Any]) -> Iterator[_Part]:
    frame = one.gi_frame
    if frame is None:
        yield "", None, None
    elif is_users(frame.f_globals.get("__name__")):
        yield "", frame.f_lasti, None
        yield from ((f".{name}", value, None) for name, value in locals_of(frame).items())


def _of_iterator(one: Any) -> Iterator[_Part]:
    yield "", operator.length_hint(one, -1), Place(id(one), ITEMS)
    if type(one) in _ITERATORS:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.14 no longer copies those of itertools
        state = one.__reduce__()
    yield from ((f"[{at}]", value, None) for at, value in enumerate(state[1:]))


def _of_class(one: type) -> Iterator[_Part]:
    for kind in (*one.__mro__, type(one)):
        for name, value in vars(kind).items() if _is_looked_into(kind) else ():
            function = unwrapped(value)
            is_own = not (name.startswith("__") and name.endswith("__"))
            if is_own or (type(function) is types.FunctionType and name not in ("__init__", "__new__")):
                yield f".{name}", function, place_in(kind, name)


def _attributes(one: Any) -> Iterator[_Part]:
    kind: Any = type(one)
    without = _of_bases(kind)
    if issubclass(type(one), nn.Cell):  # has no slots, but a hundred attributes of its own
        found: Iterable[tuple[str, Any]] = beside_bare(one).items()
    else:
        found = attributes_of(one)
    yield from ((f".{name}", value, place_in(one, name)) for name, value in found if name not in without)
    if _is_looked_into(type(one)):
        yield f".{type(one).__name__}", type(one), None


@functools.lru_cache(maxsize=4096)
def _of_bases(kind: Any) -> frozenset[str]:
    """Return the attributes that the methods of a user's class's bases from libraries assign: those are theirs."""
    bases = [base for base in kind.__mro__ if not _is_looked_into(base)] if _is_looked_into(kind) else []
    codes = [one.__code__ for base in bases for one in vars(base).values() if type(one) is types.FunctionType]
    stores = (one for code in codes for one in dis.get_instructions(code) if one.opname == "STORE_ATTR")
    return frozenset(str(one.argval) for one in stores)


def _is_looked_into(one: type | types.FunctionType) -> bool:
    """Return whether a class or function is the user's, and not of an installed library."""
    if type(one) is types.FunctionType:
        return is_users(one.__module__) and not is_installed(one.__code__.co_filename)
    return is_users(one.__module__) and not is_library_class(one) and type(one) is not enum.EnumMeta
