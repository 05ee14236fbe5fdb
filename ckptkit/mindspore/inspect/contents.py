"""Lists what an object holds and leads to: its items, its attributes, and the variables that its code names.

Guarantees: as `attributes`. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ckptkit.mindspore.inspect.attributes import PROXIES, UNKNOWN, attributes_of, methods_of, own_attributes
from ckptkit.mindspore.inspect.code.names import globals_in, names_in
from ckptkit.mindspore.inspect.users import is_users

_MAX_ITEMS = 10_000  # of one container
_TRIES = 100  # to read what another thread is changing


def below(one: Any, without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield what ``one`` leads to, each with its suffix: items, attributes, the variables that code names.

    Library code is not read, but its closures are: they may hold a function of the user's. Weak proxies are left out.

    Args:
        one: Any object.
        without: Names of attributes to leave out.
    """
    yield from ((name, value) for name, value in _below(one, without) if type(value) not in PROXIES)


def _below(one: Any, without: Collection[str]) -> Iterator[tuple[str, Any]]:
    kind = type(one)
    if issubclass(kind, dict):
        for index, (key, value) in enumerate(items_now(dict, one, _MAX_ITEMS)):
            yield item_suffix(key, index), value
    elif issubclass(kind, (list, tuple, deque)):
        items = items_now(_base(kind), one, _MAX_ITEMS)
        yield from ((f"[{index}]", value) for index, value in enumerate(items))
    elif kind is types.MethodType:
        yield ".__self__", one.__self__
        yield ".__func__", one.__func__
    elif kind is types.FunctionType:
        yield from ((f".{name}", value) for name, value in _variables_of(one))
    elif issubclass(kind, functools.partial):
        yield from ((f"({place})", value) for place, value in enumerate((one.func, *one.args, *one.keywords.values())))
    elif kind is types.GeneratorType:
        frame = one.gi_frame
        yield from ((f".{name}", value) for name, value in (frame.f_locals if frame is not None else {}).items())
    elif not issubclass(kind, (type, types.ModuleType)):
        found = itertools.chain(attributes_of(one), methods_of(kind))
        yield from ((f".{name}", value) for name, value in found if name not in without)


def item_suffix(key: Any, index: int) -> str:
    """Return how a path names an item of a dict: by its key, if that is a text or a number, or by its place."""
    return f"[{key!r}]" if type(key) in (str, int) else f"[{index}]"


def items_now(kind: Any, one: Any, most: int | None) -> list[Any]:
    """Return the first items of a container, of a dict its pairs; another thread may be changing it.

    Args:
        kind: Python's own class of it. What a class of the user's does when it is iterated is not done.
        one: The container.
        most: How many at most; None for all.

    Raises:
        RuntimeError: If it was changed during each of many tries.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(RuntimeError):  # it was changed meanwhile
            return _items(kind, one, most)
    return _items(kind, one, most)


def _items(kind: Any, one: Any, most: int | None) -> list[Any]:
    return [*itertools.islice(dict.items(one) if kind is dict else kind.__iter__(one), most)]


def named_in(names: Collection[str], *scopes: Mapping[str, Any], parts: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield each of ``names`` from the first of ``scopes`` that has it.

    Instead of a module of the user's, yields those of its variables that are in ``parts``. Skips other modules.
    """
    for name in names:
        value = next((scope[name] for scope in scopes if name in scope), UNKNOWN)
        if issubclass(type(value), types.ModuleType):
            if is_users(own_attributes(value).get("__name__")):
                found = ((part, own_attributes(value).get(part, UNKNOWN)) for part in parts)
                yield from ((f"{name}.{part}", held) for part, held in found if held is not UNKNOWN)
        elif value is not UNKNOWN:
            yield name, value


def _base(kind: type) -> Any:
    return next(one for one in (list, tuple, deque) if issubclass(kind, one))


def _variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable without a value yet
            continue
    if is_users(function.__globals__.get("__name__")):
        code = function.__code__
        # Sorted: an object is found by its first name, and a resumed process has other hashes than the first.
        yield from named_in(sorted(globals_in(code)), function.__globals__, parts=sorted(names_in(code)))
