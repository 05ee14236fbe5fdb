"""Copies objects of the user's with another value in one place.

Guarantees: no object that exists is changed, and no code of the user's runs. Does not copy objects with a ``__new__``
or a ``__del__`` of their own, cells, tensors, and those of libraries: copies share these. Any thread.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, is_users, own_attributes
from ckptkit.mindspore.inspect.values.digest import is_plain

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_DICTS = (dict, OrderedDict, Counter, defaultdict)
_SEQUENCES = (list, tuple, deque)
_MAX_DEPTH = 4  # of objects in objects
_MAX_ITEMS = 16  # of one container


class NotCopiedError(Exception):
    """Raised if a value, or something in it, cannot be copied."""


@dataclass(frozen=True)
class Place:
    """An attribute with a plain value, or with a function.

    Attributes:
        where: Its path from the object.
        steps: The same, as names of attributes and keys of items.
        holder: The object that has it.
        name: Its name there.
        value: Its value.
        rebuilt: Returns a copy of the whole object with another value there.
    """

    where: str
    steps: tuple[Any, ...]
    holder: Any
    name: str
    value: Any
    rebuilt: Callable[[Any], Any]

    @property
    def key(self) -> tuple[int, str]:
        """Tell it from others, but not from itself on another path."""
        return id(self.holder), self.name


@dataclass(frozen=True)
class _Attribute:
    name: str


def can_be_copied(one: Any) -> bool:
    """Return whether it is an object of the user's that a copy can stand for."""
    kind = type(one)
    is_made_by_object = in_class(kind, "__new__") is in_class(object, "__new__") and not isinstance(one, type)
    others = ("__del__", "construct")  # of files and the like, and of cells
    return is_made_by_object and is_users(kind.__module__) and all(in_class(kind, each) is UNKNOWN for each in others)


def twin_of(one: Any, changed: dict[str, Any]) -> Any:
    """Return a copy of an object that shares all attributes but those in ``changed``."""
    twin = object.__new__(type(one))
    own = own_attributes(one)
    for name, value in attributes_of(one):
        if name in own:
            vars(twin)[name] = changed.get(name, value)
        else:  # a slot
            object.__setattr__(twin, name, changed.get(name, value))
    return twin


def whole_copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy that shares nothing that can be changed.

    Raises:
        NotCopiedError: If something in it is of a kind that is not copied.
    """
    kind = type(value)
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if isinstance(value, (np.ndarray, *GENERATORS)):
        made = value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)
    elif kind in (list, deque, *_DICTS):
        memo[id(value)] = made = copy.copy(value)
        items = value.items() if kind in _DICTS else enumerate(value)
        for key, one in list(items):
            made[key] = whole_copy(one, memo)
    elif kind is tuple:
        made = tuple(whole_copy(one, memo) for one in value)
    elif kind is set:
        made = set(value)
    elif can_be_copied(value):
        memo[id(value)] = made = twin_of(value, {})
        for name, one in list(attributes_of(value)):
            object.__setattr__(made, name, whole_copy(one, memo))
    elif isinstance(value, (*CODE, type, types.ModuleType)) or is_plain(value):
        made = value
    else:
        raise NotCopiedError(kind.__name__)
    memo[id(value)] = made
    return made


def places_in(
    one: Any,
    rebuilt: Callable[[Any], Any] = lambda new: new,
    path: str = "",
    steps: tuple[Any, ...] = (),
    depth: int = 0,
) -> Iterator[Place]:
    """Yield the attributes of an object, and of those in it, whose values can be changed in a copy."""
    for name, value in attributes_of(one):
        where = f"{path}.{name}".lstrip(".")
        place = Place(where, (*steps, _Attribute(name)), one, name, value, _setting(one, name, rebuilt))
        yield from _below(place, depth)


def _below(place: Place, depth: int) -> Iterator[Place]:
    """Yield the place, or the attributes of the objects in it."""
    value = place.value
    if can_be_copied(value):
        if depth < _MAX_DEPTH:
            yield from places_in(value, place.rebuilt, place.where, place.steps, depth + 1)
        return
    if type(value) in (*_SEQUENCES, *_DICTS):
        items = value.items() if type(value) in _DICTS else enumerate(value)
        inner = [(key, one) for key, one in itertools.islice(items, _MAX_ITEMS) if can_be_copied(one)]
        for key, one in inner if depth < _MAX_DEPTH else ():
            where, steps = f"{place.where}[{key!r}]", (*place.steps, key)
            yield from places_in(one, _replacing(value, key, place.rebuilt), where, steps, depth + 1)
        if inner:
            return
    if isinstance(value, (*GENERATORS, *CODE)) or is_plain(value):
        yield place


def follow(one: Any, steps: tuple[Any, ...]) -> Any:
    """Return what is at a place of another copy; `UNKNOWN` if it has none."""
    for step in steps:
        if isinstance(step, _Attribute):
            one = dict(attributes_of(one)).get(step.name, UNKNOWN)
        else:
            try:
                one = one[step]
            except (KeyError, IndexError, TypeError):
                return UNKNOWN
    return one


def _setting(one: Any, name: str, rebuilt: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda new: rebuilt(twin_of(one, {name: new}))


def _replacing(items: Any, at: Any, rebuilt: Callable[[Any], Any] = lambda new: new) -> Callable[[Any], Any]:
    """Return what copies the whole with another item of a container."""

    def copied(new: Any) -> Any:
        if type(items) is tuple:
            return rebuilt(tuple(new if index == at else one for index, one in enumerate(items)))
        other = copy.copy(items)
        other[at] = new
        return rebuilt(other)

    return copied


def with_digits(value: Any) -> Any:
    """Return a value of which a change in the last bit shows whether all digits are kept; of a zero, a third."""
    if type(value) is float:
        return value if math.isfinite(value) and abs(value) > 1e-9 else 1 / 3
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        return _array_with(value, lambda one: one if abs(one) > 1e-4 else one.dtype.type(1 / 3))
    return _with_last(value, with_digits, value)


def changed_a_little(value: Any) -> Any:
    """Return a value that differs in the last bit, or by one; `UNKNOWN` if none is known."""
    kind = type(value)
    if kind is float:
        return math.nextafter(value, math.inf)
    if isinstance(value, np.ndarray | np.generic):
        return _array_with(value, lambda one: np.nextafter(one, one.dtype.type(math.inf)))
    if kind is int:
        return value + 1
    found = _with_last(value, changed_a_little)
    return _another(value) if found is UNKNOWN else found


def changed_much(value: Any) -> Any:
    """Return a value that differs in its first digits; `UNKNOWN` if none is known."""
    kind = type(value)
    if kind in (float, int):
        return value * 3 + 12345 if math.isfinite(value) else 0
    if isinstance(value, np.ndarray | np.generic):
        return _array_with(value, lambda one: one * one.dtype.type(3) + one.dtype.type(12345))
    found = _with_last(value, changed_much)
    return _another(value) if found is UNKNOWN else found


def _array_with(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a copy of an array, or a number of NumPy's, whose first and last item are changed."""
    array = np.array(value)
    if array.size == 0 or array.dtype.kind not in "fiub":
        return UNKNOWN
    flat = array.reshape(-1)
    for at in {0, array.size - 1}:
        one = flat[at]
        flat[at] = changed(one) if array.dtype.kind == "f" else (not one if array.dtype.kind == "b" else one ^ 1)
    return flat[0] if isinstance(value, np.generic) else flat.reshape(array.shape)


def _with_last(value: Any, changed: Callable[[Any], Any], otherwise: Any = UNKNOWN) -> Any:
    """Return a container whose last item is ``changed``; ``otherwise`` for any other value."""
    kind = type(value)
    if kind not in (*_SEQUENCES, *_DICTS) or not value:
        return otherwise
    last = list(value)[-1] if kind in _DICTS else len(value) - 1
    item = changed(value[last])
    return otherwise if item is UNKNOWN or item is value[last] else _replacing(value, last)(item)


def _another(value: Any) -> Any:
    """Return another value of what has no digits; `UNKNOWN` if none is known."""
    kind: Any = type(value)
    if isinstance(value, GENERATORS):
        return _after_draws(value)
    if kind in (set, frozenset):
        return kind([*value, 2])
    if kind in (str, bool):
        return f"{value}." if kind is str else not value
    if kind in (list, deque, *_DICTS):
        other = copy.copy(value)
        # Not in the order of the keys: some states sort them.
        other.update({"b": 2, "a": 3}) if kind in _DICTS else other.extend([2])
        return other
    return len if isinstance(value, CODE) else {tuple: (2,), types.NoneType: 2}.get(kind, UNKNOWN)


def _after_draws(generator: Any) -> Any:
    """Return a copy that has drawn, and that keeps a half of what it drew last for the next call."""
    other = copy.deepcopy(generator)
    other.random()
    for _ in range(2):  # if it kept one before, the first call uses that up
        if isinstance(other, np.random.Generator):
            other.integers(0, 1 << 31, dtype=np.uint32)
            keeps = other.bit_generator.state.get("has_uint32", 1)
        elif isinstance(other, np.random.RandomState):
            other.standard_normal()
            keeps = other.get_state(legacy=False)["has_gauss"]
        else:
            other.gauss(0, 1)
            keeps = other.gauss_next is not None
        if keeps:
            break
    return other
