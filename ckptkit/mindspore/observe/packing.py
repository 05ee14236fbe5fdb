"""Packs values of the user's for a checkpoint, and makes them again in another process: `Packer` and `Unpacker`.

What can be packed: plain values, arrays, tensors, generators, containers and iterators of the standard library over
these, objects of classes that the next process can name, and references to what the next process has too. An object of
the user's is made again without running its class: its attributes are set. One of the standard library is made as its
``__reduce_ex__`` says, by a function of `_MAKERS`. Anything else is refused with `CannotPackError`.

An object that the next process has keeps its identity there: it gets the *content* of a slot (`refilled`), and wherever
else it occurs, a reference. One that it does not have and that occurs twice, occurs twice afterwards.

Guarantees: what `Packer.slot` returns is accepted by `ckptkit.core.state_encoding.encode_tree`. `Unpacker` changes
nothing that is there. No code of the user's runs. No pickle. Main thread only.
"""

from __future__ import annotations

import contextvars
import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from pathlib import PosixPath, PurePosixPath
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.core.tensors import dtype_of, leaf_of
from ckptkit.mindspore.observe.attributes import (
    NO_ATTRIBUTES,
    attributes_of,
    items_of_dict,
    own_attributes,
    set_attribute,
)
from ckptkit.mindspore.observe.user_code import is_users_class
from ckptkit.mindspore.observe.value_kinds import (
    ATOMS,
    GENERATORS,
    extends_plain,
    generator_of,
    iterated,
    reduced,
    text_of,
)
from ckptkit.mindspore.parameters.apply import tensor_of
from ckptkit.mindspore.rng import restore_generator

_MOST_DEPTH = 24
_LEAST_ADDRESS = 1 << 24
_ITEM_BYTES = 8  # that an item counts for, whatever it is
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
# What a checkpoint may call to make an object again.
_ALL_MAKERS: tuple[Any, ...] = (
    *(iter, reversed, enumerate, zip, map, filter, range, slice, complex, bytearray, np.dtype),
    *(deque, OrderedDict, Counter, defaultdict, types.SimpleNamespace, functools.partial),
    *(decimal.Decimal, fractions.Fraction, PurePosixPath, PosixPath),
    *(datetime.datetime, datetime.timedelta, datetime.timezone, datetime.date, datetime.time),
    *(type(iter(deque())), type(reversed(deque()))),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
)
_MAKERS = {maker.__qualname__: maker for maker in _ALL_MAKERS}

_NOT_OBJECTS: tuple[Any, ...] = (nn.Cell, ms.Tensor, np.ndarray, BaseException, type, types.ModuleType, *GENERATORS)
_NOT_OBJECTS += (set, frozenset, tuple, deque, ctypes.Array, ctypes.Structure)
_ADDING: dict[Any, Callable[[Any, Any], None]] = {
    **{OrderedDict: OrderedDict.update, dict: dict.update, set: set.update},
    **{list: list.extend, deque: deque.extend, bytearray: bytearray.extend},
}
_FILLED = (*_ADDING, np.ndarray, ms.Parameter, *GENERATORS)
_WITH_PLACE = (*_FILLED, types.FunctionType, type, contextvars.ContextVar)
_ARRAYS = (np.ndarray, np.memmap)
_LOST = object()
# Of these, one object may be in two places.
_IDENTICAL = frozenset(("dict", "list", "set", "object", "made", "tensor", "generator", "numbers"))


class CannotPackError(Exception):
    """Says why a value cannot be stored, or not put back."""


def signature_of(value: Any) -> Any:
    """Return what two objects have in common if one can take over the content of the other.

    None for a value that has no place of its own: it is stored with what holds it.
    """
    kind: Any = type(value)
    is_array = issubclass(kind, np.ndarray)
    if issubclass(kind, (tuple, frozenset, types.ModuleType)) or extends_plain(kind):
        return None
    if issubclass(kind, ms.Tensor) and not issubclass(kind, ms.Parameter):
        return None
    if is_array and not (value.flags.writeable or _shows_another(value)):
        return None
    # Also an object that has no attributes yet, or only slots.
    has_attributes = own_attributes(value) is not NO_ATTRIBUTES or next(attributes_of(value), None) is not None
    if not (has_attributes or is_users_class(kind) or issubclass(kind, _WITH_PLACE)):
        return None
    name = f"{kind.__module__}.{kind.__qualname__}"  # MindSpore gives cells another class of the same name
    if is_array or issubclass(kind, ms.Parameter):
        return name, value.dtype, value.shape
    return (name, value.maxlen) if issubclass(kind, deque) else name


def has_content(value: Any) -> bool:
    """Return whether `refilled` can give an object other content."""
    return issubclass(type(value), _FILLED)


def refilled(present: Any, content: Any) -> Any:
    """Return an object that is there, with the content of another of its kind."""
    kind: Any = type(present)
    if issubclass(kind, np.ndarray):
        if not _shows_another(present):
            present[...] = content
    elif issubclass(kind, ms.Parameter):
        present.set_data(content)
    elif issubclass(kind, np.random.BitGenerator):
        present.state = content.state
    elif issubclass(kind, GENERATORS):
        restore_generator(present, generator_of(content))
    else:
        base = next(base for base in kind.__mro__ if base in _ADDING)
        base.clear(present)
        _ADDING[base](present, content)
    return present


class Packer:
    """Packs values.

    Args:
        reference: Returns how another process reaches an object that it has too; or None.
        most_bytes: At most so many bytes in all.
        owner_of: Returns the name of the stored parameter whose memory a parameter or an array has, or None.
        addresses: The ``id`` of objects, which another process has elsewhere.
    """

    def __init__(
        self,
        reference: Callable[[Any], Any],
        most_bytes: int,
        owner_of: Callable[[Any], str | None] = lambda _: None,
        addresses: Collection[int] = (),
    ) -> None:
        self._reference = reference
        self._owner_of = owner_of
        self._addresses = addresses
        self._left_bytes = most_bytes
        self._numbers: dict[int, int] = {}
        self._values: list[Any] = []  # by these numbers; kept, so that no id is used again

    def slot(self, value: Any, *, is_content: bool = False) -> tuple[int, Any]:
        """Return the number of the first new object, and a value, or the content of an object, in plain form.

        Raises:
            CannotPackError: If it cannot be stored; says why.
        """
        first, left_bytes = len(self._values), self._left_bytes
        try:
            return first, ["content", self._content(value, 0)] if is_content else self._pack(value, 0)
        except CannotPackError:
            for part in self._values[first:]:  # of which nothing is stored
                del self._numbers[id(part)]
            del self._values[first:]
            self._left_bytes = left_bytes
            raise

    def _pack(self, value: Any, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise CannotPackError("nested too deep, or in itself")
        if id(value) in self._numbers:
            return ["again", self._numbers[id(value)]]
        self._count(_ITEM_BYTES)
        packed = self._packed(value, depth)
        if packed[0] in _IDENTICAL:
            self._numbers[id(value)] = len(self._values)
            self._values.append(value)
        return packed

    def _packed(self, value: Any, depth: int) -> Any:  # noqa: PLR0911 - one case per kind reads like a table
        kind: Any = type(value)
        if kind in ATOMS and kind is not complex:
            return ["=", self._atom(value)]
        if issubclass(kind, np.generic):
            return ["=", self._array(value)]
        if (reference := self._reference(value)) is not None:
            return ["reference", reference]
        is_plain = issubclass(kind, (ms.Tensor, *GENERATORS)) and not is_users_class(kind)
        if is_plain or kind in (list, dict, set, *_ARRAYS):
            return self._content(value, depth)
        if kind in (tuple, frozenset):
            return [kind.__name__, self._items(_ordered(value), depth)]
        if issubclass(kind, enum.Enum):
            return ["member", self._class(kind), own_attributes(value)["_name_"]]
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return ["named tuple", self._class(kind), self._items(tuple.__iter__(value), depth)]
        return self._object(value, depth) if is_users_class(kind) else self._made(value, depth)

    def _content(self, value: Any, depth: int) -> Any:
        """Return a plain value that has the content of an object."""
        kind: Any = type(value)
        if issubclass(kind, np.ndarray):
            if not _is_own(value) and self._owner_of(value) is not None:
                raise CannotPackError("an array in the memory of a parameter")
            return ["numbers", np.array(self._array(value))]
        if issubclass(kind, ms.Tensor):
            return self._tensor(value)
        if issubclass(kind, dict):
            return ["dict", self._pairs(items_of_dict(value), depth)]
        if issubclass(kind, bytearray):
            return ["=", self._atom(bytes(value))]
        if issubclass(kind, GENERATORS):
            if (state := generator_of(value)) is None:
                raise CannotPackError(f"a {kind.__module__}.{kind.__qualname__}")
            base = next(base for base in kind.__mro__ if base.__module__.partition(".")[0] in ("numpy", "random"))
            return ["generator", base.__name__, self._pack(state, depth + 1)]
        return ["set" if issubclass(kind, set) else "list", self._items(_ordered(value), depth)]

    def _object(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        if issubclass(kind, _NOT_OBJECTS) or extends_plain(kind):
            raise CannotPackError(f"a {kind.__module__}.{kind.__qualname__}")
        parts = [[name, self._pack(part, depth + 1)] for name, part in attributes_of(value)]
        held = self._content(value, depth) if issubclass(kind, (dict, list)) else None
        return ["object", self._class(kind), parts, held]

    def _made(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        maker, arguments, *rest = (
            (complex, (value.real, value.imag)) if kind is complex else reduced(value) or (None, ())
        )
        if _MAKERS.get(getattr(maker, "__qualname__", "")) is not maker or maker is None:
            raise CannotPackError(f"a {kind.__module__}.{kind.__qualname__}")
        state, items, pairs = [*rest, None, None, None][:3]
        held = self._items(arguments, depth), self._items(items or (), depth), self._pairs(pairs or (), depth)
        return ["made", maker.__qualname__, *held, self._pack(state, depth + 1)]

    def _class(self, kind: type) -> list[str]:
        if "<locals>" in kind.__qualname__:
            raise CannotPackError(f"of the class {kind.__qualname__}, which the next process cannot name")
        return [kind.__module__, kind.__qualname__]

    def _items(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self._pack(value, depth + 1) for value in values]

    def _pairs(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> list[Any]:
        return [[self._pack(key, depth + 1), self._pack(value, depth + 1)] for key, value in pairs]

    def _atom(self, value: Any) -> Any:
        if type(value) is int and value > _LEAST_ADDRESS and value in self._addresses:
            raise CannotPackError("it holds id() of an object, which is elsewhere in the next process")
        if type(value) in (str, bytes):
            self._count(len(value))
        try:
            if type(value) is str:
                value.encode()
        except UnicodeEncodeError:
            raise CannotPackError("a text that is not valid Unicode") from None
        return value

    def _tensor(self, value: ms.Tensor) -> Any:
        if value.has_init:
            raise CannotPackError("a tensor without data")
        is_parameter = isinstance(value, ms.Parameter)
        if is_parameter and self._owner_of(value) is not None:
            raise CannotPackError("a parameter in the memory of another")
        leaf = leaf_of("", self._array(value.asnumpy()), role="state")
        name, requires_grad = (value.name, bool(value.requires_grad)) if is_parameter else (None, None)
        return ["tensor", leaf.dtype, np.array(leaf.array), name, requires_grad]

    def _array(self, value: Any) -> Any:
        try:
            dtype_of("", value)
        except TypeError:
            raise CannotPackError(f"an array of {value.dtype}") from None
        self._count(value.nbytes)
        return value

    def _count(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise CannotPackError("too large")


class Unpacker:
    """Makes packed values again, in the order in which they were packed.

    Args:
        resolve: Returns the object of a reference.
        class_of: Returns a class by module and name.

    Both raise `CannotPackError` if this process has none.
    """

    def __init__(self, resolve: Callable[[Any], Any], class_of: Callable[[str, str], Any]) -> None:
        self._resolve, self._class_of = resolve, class_of
        self._values: list[Any] = []

    def slot(self, first: int, packed: Any) -> Any:
        """Return the value, or what has the content for `refilled`.

        Raises:
            CannotPackError: If this process lacks what it refers to.
        """
        self._values += [_LOST] * (first - len(self._values))  # of slots that could not be put back
        return self._made(*packed[1]) if packed[0] == "content" else self._value(packed)

    def _value(self, packed: Any) -> Any:
        value = self._made(*packed)
        if packed[0] in _IDENTICAL:
            self._values.append(value)
        return value

    def _made(self, tag: str, *held: Any) -> Any:  # noqa: PLR0911 - as `_packed`
        if tag == "=":
            return held[0]
        if tag == "again":
            if self._values[held[0]] is _LOST:
                raise CannotPackError("a part of it could not be put back")
            return self._values[held[0]]
        if tag == "numbers":
            return np.array(held[0])
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](map(self._value, held[0]))
        if tag == "dict":
            return self._pairs(held[0])
        if tag == "object":
            return self._object(*held[:3])  # earlier versions stored a reference behind these
        if tag == "made":
            return self._by_maker(*held)
        if tag == "named tuple":
            return tuple.__new__(self._class_of(*held[0]), map(self._value, held[1]))
        if tag == "member":
            return self._class_of(*held[0]).__members__[held[1]]
        if tag == "tensor":
            dtype, bits, name, requires_grad = held
            tensor = tensor_of(bits, dtype)
            return tensor if name is None else ms.Parameter(tensor, name=name, requires_grad=bool(requires_grad))
        if tag == "generator":
            return _generator(held[0], self._value(held[1]))
        return self._resolve(held[0])  # "reference"

    def _by_maker(self, name: str, arguments: Any, items: Any, pairs: Any, state: Any) -> Any:
        made = _MAKERS[name](*map(self._value, arguments))
        if items:
            made.extend([*map(self._value, items)])
        if pairs:
            made.update(self._pairs(pairs))
        if (state := self._value(state)) is not None:
            if hasattr(made, "__setstate__"):
                made.__setstate__(state)
            else:
                vars(made).update(state)
        return made

    def _object(self, named: Any, parts: Any, content: Any) -> Any:
        kind = self._class_of(*named)
        if any("__new__" in vars(base) and is_users_class(base) for base in kind.__mro__):
            raise CannotPackError(f"the class {kind.__qualname__} makes its objects in a __new__ of its own")
        made = kind.__new__(kind)
        for name, packed in parts:
            set_attribute(made, name, self._value(packed))
        if content is not None:
            refilled(made, self._made(*content))
        return made

    def _pairs(self, packed: Any) -> dict[Any, Any]:
        return {self._value(key): self._value(part) for key, part in packed}


def _ordered(value: Any) -> Iterable[Any]:
    """Return the items of a container; those of a set in an order that is the same in every process."""
    for base in (set, frozenset):
        if issubclass(type(value), base):
            return sorted(base.__iter__(value), key=text_of)
    return iterated(value)


def _shows_another(value: Any) -> bool:
    """Return whether an array changes only with the one that it shows, which is put back itself."""
    return not value.flags.writeable and value.base is not None


def _is_own(value: Any) -> bool:
    """Return whether an array, or the one that it shows, has memory of NumPy's; any other may be a parameter's."""
    while type(value.base) in _ARRAYS:
        value = value.base
    return value.base is None or type(value) is np.memmap


def _generator(kind: str, state: Any) -> Any:
    make: Any = getattr(random if kind == "Random" else np.random, kind)
    made = make(getattr(np.random, state["bit_generator"])()) if kind == "Generator" else make()
    if issubclass(type(made), np.random.BitGenerator):
        made.state = state
    else:
        restore_generator(made, state)
    return made
