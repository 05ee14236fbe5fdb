"""Copies whole objects of the user's, and sets single values in the copies.

Guarantees: nothing that exists is changed, and no code of the user's runs. A copy shares nothing that can be changed:
numbers, texts, containers, arrays, generators and objects of plain classes are copied, of large arrays there is a
read-only view, and an attribute that leads to anything else is left out. Only functions and members of plain enums are
the same as in the object; `Copying` says where functions are. Any thread.
"""

from __future__ import annotations

import abc
import copy
import datetime
import decimal
import enum
import fractions
import pathlib
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np
from mindspore.train import Callback

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, members_of, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.users import is_of_users, is_users
from ckptkit.mindspore.inspect.values.digest import is_plain

CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
DICTS = (dict, OrderedDict, Counter, defaultdict)
SEQUENCES = (list, tuple, deque)
_ATOMS = (types.NoneType, bool, int, float, complex, str, bytes, decimal.Decimal, fractions.Fraction)
_FIXED = (datetime.date, datetime.timedelta, pathlib.PurePath, np.generic)  # of libraries: users' may have more
_BASES = (object, Callback, abc.ABC, Generic, Protocol)
LARGE_BYTES = 1 << 16  # of an array
_MOST = 1_000  # containers and objects in a copy, and items of a container
# Methods that Python runs where the code shows none.
_HIDDEN = (
    *("__new__", "__del__", "__setattr__", "__getattribute__", "__getattr__", "__delattr__"),
    *("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
)
_IN_PARTS = (
    *("__iter__", "__next__", "__getitem__", "__setitem__", "__contains__"),
    *("__len__", "__eq__", "__hash__", "__bool__"),
)
_DESCRIPTORS = (property, types.MemberDescriptorType, types.GetSetDescriptorType)  # these run no hidden code


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
    of_others = {base for base in kind.__mro__ if not is_users(base.__module__)}
    return of_others <= {*_BASES} and not _hides_code(kind, (*_HIDDEN, *(_IN_PARTS if is_part else ())))


def _hides_code(kind: type, names: Collection[str]) -> bool:
    """Return whether a class of the user's has a method of these names, or a descriptor that runs code."""
    parts = [*members_of(kind)]
    is_shown = any(name in names and one is not None and not _is_generated(one) for name, one in parts)
    return is_shown or any(hasattr(type(one), "__set__") and type(one) not in _DESCRIPTORS for _, one in parts)


def _is_generated(one: Any) -> bool:
    """Return whether a method was made of text, such as those of dataclasses and named tuples."""
    function = one.__func__ if isinstance(one, (staticmethod, classmethod)) else one
    return isinstance(function, types.FunctionType) and function.__code__.co_filename.startswith("<")


class Copying:
    """Makes one whole copy; what is reached twice is copied once.

    Attributes:
        size: How many containers, objects and items it has.
        kinds: The classes of the user's objects in it.
        functions: The names of attributes that lead to functions, which are not copied.
        shares: Whether it has a function or a member of an enum, of which there is only one.
    """

    def __init__(self) -> None:
        self.size = 0
        self.kinds: set[type] = set()
        self.functions: set[str] = set()
        self.shares = False
        self._memo: dict[int, Any] = {}
        self._lead_to_functions: set[int] = set()  # ids of containers
        self._is_part = False

    def of(self, value: Any) -> Any:  # noqa: PLR0911 - one return per kind reads as the table that it is
        """Return the copy.

        Raises:
            NotCopiedError: If something in it is of a kind that is not copied.
            TooLargeError: If there is too much in it.
        """
        kind = type(value)
        if kind in _ATOMS or _is_fixed(value):
            return value
        if isinstance(value, CODE) or _is_member(value):
            self.shares = True
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        self._count(1)
        if kind is np.ndarray and not value.dtype.hasobject:
            return self._keep(value, _read_only(value) if value.nbytes > LARGE_BYTES else value.copy())
        if kind in GENERATORS:
            return self._keep(value, copy.deepcopy(value))
        if kind in (list, deque, *DICTS):
            return self._container(value)
        if kind is tuple or _is_record(kind):
            return self._tuple(value)
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

    def _note_functions(self, value: Any, inner: Iterable[Any]) -> None:
        if any(isinstance(one, CODE) or id(one) in self._lead_to_functions for one in inner):
            self._lead_to_functions.add(id(value))

    def _tuple(self, value: Any) -> Any:
        self._count(len(value))
        self.kinds |= {type(value)} - {tuple}
        made = self._keep(value, tuple.__new__(type(value), [self.of(one) for one in value]))
        self._note_functions(value, value)
        return made

    def _container(self, value: Any) -> Any:
        self._count(len(value))
        kind = type(value)
        if kind is defaultdict and value.default_factory not in (None, int, float, list, dict, set, deque, Counter):
            raise NotCopiedError(kind.__name__)
        made = self._keep(value, copy.copy(value))
        if kind not in DICTS:
            for at, one in enumerate(value):
                made[at] = self.of(one)
            self._note_functions(value, value)
            return made
        if not all(map(_is_key, value)):
            raise NotCopiedError(kind.__name__)
        for key, one in value.items():
            made[key] = self.of(one)
        self._note_functions(value, value.values())
        return made

    def _object(self, value: Any) -> Any:
        made = self._keep(value, object.__new__(type(value)))
        self._is_part = True
        self.kinds.add(type(value))
        for name, one in attributes_of(value):
            try:
                put(made, name, self.of(one))
            except NotCopiedError:
                continue
            if isinstance(one, CODE) or id(one) in self._lead_to_functions:
                self.functions.add(name)
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


def _is_record(kind: type) -> bool:
    """Return whether it is a class of named tuples."""
    is_tuple = kind.__mro__[1:] == (tuple, object) and hasattr(kind, "_fields")
    return is_tuple and not _hides_code(kind, (*_HIDDEN, *_IN_PARTS))


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _FIXED) and not is_of_users(value)


def _is_member(value: Any) -> bool:
    """Return whether it is a member of an enum that has neither methods nor attributes of its own."""
    if not isinstance(value, enum.Enum):
        return False
    functions = [one for one in vars(type(value)).values() if isinstance(one, types.FunctionType)]
    return all(map(_is_generated, functions)) and all(name.startswith("_") for name in own_attributes(value))


def _is_key(one: Any) -> bool:
    is_one = type(one) in _ATOMS or _is_fixed(one) or _is_member(one)
    return is_one or (type(one) is tuple and all(map(_is_key, one)))


def places_in(one: Any, without: Collection[int] = ()) -> Iterator[Place]:
    """Yield the attributes of an object, and of those in it, each object once.

    Args:
        one: The object.
        without: Ids of objects in it that are left out.
    """
    seen = {*without}
    waiting: deque[tuple[Any, str, tuple[Any, ...]]] = deque([(one, "", ())])
    while waiting and len(seen) < _MOST:
        holder, path, steps = waiting.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in attributes_of(holder):
            place = Place(f"{path}.{name}".lstrip("."), (*steps, _Attribute(name)), holder, name, value)
            inner = [*_objects_in(place)]
            waiting += inner
            if not inner and not _is_view(value) and (isinstance(value, (*GENERATORS, *CODE)) or is_plain(value)):
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
    """Set the value at a place of a copy, in the same container if possible; return whether there is the place."""
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
