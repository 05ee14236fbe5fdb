"""Copies objects of the user's whole, and changes one value in a copy.

Guarantees: nothing that exists is changed, and no code of the user's runs. A copy shares nothing that can be changed:
numbers, texts, containers, arrays, generators and objects of plain classes are copied, of large arrays there is a
read-only view, and an attribute that leads to anything else is left out. Any thread.
"""

from __future__ import annotations

import abc
import copy
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np
from mindspore.train import Callback

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, is_users
from ckptkit.mindspore.inspect.values.digest import digest_of_value, is_plain

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
DICTS = (dict, OrderedDict, Counter, defaultdict)
SEQUENCES = (list, tuple, deque)
_ATOMS = (types.NoneType, bool, int, float, complex, str, bytes, decimal.Decimal, fractions.Fraction)
_TIMES = (datetime.date, datetime.datetime, datetime.timedelta, pathlib.PurePath, enum.Enum, np.generic)
_BASES = (object, Callback, abc.ABC, Generic, Protocol)
_LARGE_BYTES = 1 << 16  # of an array
_MOST = 1_000  # containers and objects in a copy, and items of a container
_MAX_DEPTH = 4  # of objects in objects
# Methods that Python runs where the code shows none.
_HIDDEN = (
    *("__new__", "__del__", "__setattr__", "__getattribute__", "__getattr__", "__delattr__"),
    *("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
)
_IN_PARTS = (
    "__iter__",
    "__next__",
    "__getitem__",
    "__setitem__",
    "__contains__",
    "__len__",
    "__eq__",
    "__hash__",
    "__bool__",
)


class NotCopiedError(Exception):
    """Raised if a value, or something in it, is not copied."""


class TooLargeError(Exception):
    """Raised if a copy would take long."""


@dataclass(frozen=True)
class _Attribute:
    name: str


@dataclass(frozen=True)
class Place:
    """An attribute with a plain value, or with a function.

    Attributes:
        where: Its path from the object.
        steps: The same, as names of attributes and keys of items.
        holder: The object that has it.
        name: Its name there.
        value: Its value.
    """

    where: str
    steps: tuple[Any, ...]
    holder: Any
    name: str
    value: Any


def is_simple(kind: Any, *, is_part: bool = False) -> bool:
    """Return whether objects of a class of the user's can be copied, and used without code that is not shown.

    Args:
        kind: The class.
        is_part: Whether the object is in another one, whose code may iterate over it or compare it.
    """
    if not is_users(kind.__module__) or type(kind) not in (type, abc.ABCMeta):
        return False
    hidden = (*_HIDDEN, *(_IN_PARTS if is_part else ()))
    for base in kind.__mro__:
        if not is_users(base.__module__):
            if base not in _BASES:
                return False
            continue
        for name, one in vars(base).items():
            is_own = not isinstance(one, types.FunctionType) or not one.__code__.co_filename.startswith("<")
            if name in hidden and one is not None and is_own:
                return False
            if hasattr(type(one), "__set__") and type(one) not in (
                property,
                types.MemberDescriptorType,
                types.GetSetDescriptorType,
            ):
                return False
    return True


class Copying:
    """Makes one whole copy; what is reached twice is copied once."""

    def __init__(self) -> None:
        self.size = 0  # containers, objects and items
        self._memo: dict[int, Any] = {}
        self._is_part = False

    def of(self, value: Any) -> Any:  # noqa: PLR0911 - one return per kind reads as the table that it is
        """Return the copy.

        Raises:
            NotCopiedError: If something in it is of a kind that is not copied.
            TooLargeError: If there is too much in it.
        """
        kind = type(value)
        if kind in _ATOMS or isinstance(value, (*_TIMES, *CODE, type, types.ModuleType)):
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        self._count(1)
        if kind is np.ndarray and not value.dtype.hasobject:
            return self._keep(value, _read_only(value) if value.nbytes > _LARGE_BYTES else value.copy())
        if kind in GENERATORS:
            return self._keep(value, copy.deepcopy(value))
        if kind in (list, deque, *DICTS):
            return self._container(value)
        if isinstance(value, tuple) and _is_tuple(kind):
            self._count(len(value))
            return self._keep(value, tuple.__new__(kind, [self.of(one) for one in value]))
        if kind in (set, frozenset) and all(map(_is_key, value)):
            self._count(len(value))
            return self._keep(value, kind(value))
        if is_simple(kind, is_part=self._is_part):
            return self._object(value)
        raise NotCopiedError(kind.__name__)

    def _keep(self, value: Any, made: Any) -> Any:
        self._memo[id(value)] = made
        return made

    def _count(self, more: int) -> None:
        self.size += more
        if self.size > _MOST:
            raise TooLargeError

    def _container(self, value: Any) -> Any:
        self._count(len(value))
        kind = type(value)
        if kind is defaultdict and value.default_factory not in (None, int, float, list, dict, set, deque, Counter):
            raise NotCopiedError(kind.__name__)
        made = self._keep(value, copy.copy(value))
        if kind not in DICTS:
            for at, one in enumerate(value):
                made[at] = self.of(one)
            return made
        if not all(map(_is_key, value)):
            raise NotCopiedError(kind.__name__)
        for key, one in value.items():
            made[key] = self.of(one)
        return made

    def _object(self, value: Any) -> Any:
        made = self._keep(value, object.__new__(type(value)))
        self._is_part = True
        for name, one in attributes_of(value):
            try:
                put(made, name, self.of(one))
            except NotCopiedError:
                continue
        return made


def put(one: Any, name: str, value: Any) -> None:
    """Set an attribute of a copy, also one that no method may set."""
    slot = in_class(type(one), name)
    if type(slot) is types.MemberDescriptorType:
        slot.__set__(one, value)
    else:
        object.__getattribute__(one, "__dict__")[name] = value


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _is_tuple(kind: type) -> bool:
    return kind is tuple or (kind.__mro__[1] is tuple and hasattr(kind, "_fields"))


def _is_key(one: Any) -> bool:
    return type(one) in _ATOMS or isinstance(one, _TIMES) or (type(one) is tuple and all(map(_is_key, one)))


def places_in(one: Any, without: Collection[int] = ()) -> Iterator[Place]:
    """Yield the attributes of an object, and of those in it, each object once.

    Args:
        one: The object.
        without: Ids of objects in it that are left out.
    """
    seen = {*without}
    waiting: deque[tuple[Any, str, tuple[Any, ...]]] = deque([(one, "", ())])
    while waiting:
        holder, path, steps = waiting.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in attributes_of(holder):
            place = Place(f"{path}.{name}".lstrip("."), (*steps, _Attribute(name)), holder, name, value)
            inner = [*_objects_in(place)]
            if inner and len(steps) < _MAX_DEPTH:
                waiting += inner
            elif not inner and not _is_view(value) and (isinstance(value, (*GENERATORS, *CODE)) or is_plain(value)):
                yield place


def objects_in(one: Any) -> set[int]:
    """Return the ids of an object and of those in it."""
    return {id(one)} | {id(place.holder) for place in places_in(one)}


def _is_view(value: Any) -> bool:
    """Return whether an array has its memory from another one, which may have another name."""
    return isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray)


def _objects_in(place: Place) -> Iterator[tuple[Any, str, tuple[Any, ...]]]:
    value = place.value
    if is_simple(type(value), is_part=True):
        yield value, place.where, place.steps
    items = value.items() if type(value) in DICTS else enumerate(value) if type(value) in SEQUENCES else ()
    for key, one in list(items)[:_MOST]:
        if is_simple(type(one), is_part=True):
            yield one, f"{place.where}[{key!r}]", (*place.steps, key)


def follow(one: Any, steps: tuple[Any, ...]) -> Any:
    """Return what is at a place of another copy; `UNKNOWN` if it has none."""
    for step in steps:
        if isinstance(step, _Attribute):
            one = dict(attributes_of(one)).get(step.name, UNKNOWN)
        elif type(one) in (*SEQUENCES, *DICTS):
            has = step in one if type(one) in DICTS else step < len(one)
            one = one[step] if has else UNKNOWN
        else:
            return UNKNOWN
    return one


def change(whole: Any, place: Place, value: Any) -> bool:
    """Give a copy another value at a place, in place of what other names may lead to; return whether it has one."""
    holder, present = follow(whole, place.steps[:-1]), follow(whole, place.steps)
    if holder is UNKNOWN or present is UNKNOWN:
        return False
    if type(present) is type(value) and isinstance(present, (list, deque)):
        present.clear()
        present.extend(value)
    elif type(present) is type(value) and isinstance(present, (dict, set)):
        present.clear()
        present.update(value)
    elif isinstance(present, np.ndarray) and isinstance(value, np.ndarray) and present.flags.writeable:
        present[...] = value
    else:
        put(holder, place.name, value)
    return True


def with_digits(value: Any) -> Any:
    """Return a value of which a change in the last bit shows whether all digits are kept; of a zero, a third."""
    if type(value) is float:
        return value if math.isfinite(value) and abs(value) > 1e-9 else 1 / 3
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        return _array_with(value, lambda one: one if np.isfinite(one) and abs(one) > 1e-4 else one.dtype.type(1 / 3))
    return _with_last(value, with_digits, value)


def changed_a_little(value: Any) -> Any:
    """Return a value that differs in the last bit, or by one; `UNKNOWN` if none is known."""
    kind = type(value)
    found: Any = UNKNOWN
    if kind is float:
        found = math.nextafter(value, math.inf)
    elif isinstance(value, np.ndarray | np.generic):
        found = _array_with(value, lambda one: np.nextafter(one, one.dtype.type(math.inf)))
    elif kind is int:
        found = value + 1
    else:
        found = _with_last(value, changed_a_little)
        found = _another(value) if found is UNKNOWN else found
    return _if_other(found, value)


def changed_much(value: Any) -> Any:
    """Return a value that differs in its first digits; `UNKNOWN` if none is known."""
    kind = type(value)
    found: Any = UNKNOWN
    if kind in (float, int):
        found = value * 3 + 12345 if math.isfinite(value) else kind(0)
    elif isinstance(value, np.ndarray | np.generic):
        found = _array_with(value, _much_of_array)
    else:
        found = _with_last(value, changed_much)
        found = _another(value) if found is UNKNOWN else found
    return _if_other(found, value)


def _much_of_array(one: Any) -> Any:
    return one * one.dtype.type(3) + one.dtype.type(12345) if np.isfinite(one) else one.dtype.type(0)


def _if_other(found: Any, value: Any) -> Any:
    if found is UNKNOWN or isinstance(value, CODE):
        return found
    return found if digest_of_value(found) != digest_of_value(value) else UNKNOWN


def _array_with(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a copy of an array, or a number of NumPy's, whose first and last item are changed."""
    if value.dtype.kind not in "fiub" or value.size == 0 or value.nbytes > _LARGE_BYTES:
        return UNKNOWN
    flat = np.array(value).reshape(-1)
    for at in {0, flat.size - 1}:
        one = flat[at]
        flat[at] = changed(one) if flat.dtype.kind == "f" else (not one if flat.dtype.kind == "b" else one ^ 1)
    return flat[0] if isinstance(value, np.generic) else flat.reshape(value.shape)


def _with_last(value: Any, changed: Callable[[Any], Any], otherwise: Any = UNKNOWN) -> Any:
    """Return a container whose last item is ``changed``; ``otherwise`` for any other value."""
    kind = type(value)
    if kind not in (*SEQUENCES, *DICTS) or not value:
        return otherwise
    last = list(value)[-1] if kind in DICTS else len(value) - 1
    item = changed(value[last])
    if item is UNKNOWN or item is value[last]:
        return otherwise
    if kind is tuple:
        return (*value[:-1], item)
    other = copy.copy(value)
    other[last] = item
    return other


def _another(value: Any) -> Any:
    """Return another value of what has no digits; `UNKNOWN` if none is known."""
    kind: Any = type(value)
    if kind in GENERATORS:
        return _after_draws(value)
    if kind in (set, frozenset):
        return kind([*value, next(number for number in range(2, 2 + _MOST * 2) if number not in value)])
    if kind in (str, bool):
        return f"{value}." if kind is str else not value
    if kind in (list, deque, *DICTS) and not value:
        other = copy.copy(value)
        # Not in the order of the keys: some states sort them.
        other.update({"b": 2, "a": 3}) if kind in DICTS else other.extend([2])
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
