"""Packs values of the user's for a checkpoint, and puts them back in another process: `Packer` and `Unpacker`.

What can be packed: plain values, arrays, tensors, generators, containers and iterators of the standard library over
these, objects of classes that the next process can name, and references to what the next process has too: cells,
parameters, functions, classes, objects with a path of their own. An object of the user's is made again without running
its class: its attributes are set. One of the standard library is made as its ``__reduce_ex__`` says, by a function of
`_MAKERS`. Anything else is refused with `CannotPackError`.

Guarantees: what `Packer.slot` returns is accepted by `ckptkit.core.tree.encode_tree`. A container, array, generator or
object that is there already is changed in place, since others may hold it, but never for two packed ones; one that
occurs twice, in one value or in two, occurs twice afterwards. No code of the user's runs. No pickle. Main thread only.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PosixPath, PurePosixPath
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.core.tensors import dtype_of, leaf_of
from ckptkit.mindspore.observe.attributes import attributes_of, items_of_dict, own_attributes, set_attribute
from ckptkit.mindspore.observe.users import is_users_class
from ckptkit.mindspore.observe.values import ATOMS, GENERATORS, extends_plain, generator_of, reduced, text_of
from ckptkit.mindspore.parameters.apply import assign, tensor_of
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
_LOST = object()
# Of these, one object may be in two places.
_IDENTICAL = frozenset(("dict", "list", "set", "object", "made", "tensor", "generator", "numbers"))


class CannotPackError(Exception):
    """Says why a value cannot be stored, or not put back."""


class Packer:
    """Packs values.

    Args:
        reference: Returns how another process reaches an object that it has too and that lies outside of a path; or
            None.
        most_bytes: At most so many bytes in all.
        owner_of: Returns the name of the stored parameter whose memory a parameter or an array has, or None.
        addresses: The ``id`` of objects, which another process has elsewhere.
        place_of: Returns how another process reaches the object that a packed one is there, or None.
    """

    def __init__(
        self,
        reference: Callable[[Any, str], Any],
        most_bytes: int,
        owner_of: Callable[[Any], str | None] = lambda _: None,
        addresses: Collection[int] = (),
        place_of: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        self._reference, self._owner_of, self._addresses = reference, owner_of, addresses
        self._place_of = place_of
        self._left_bytes = most_bytes
        self._path = ""
        self._numbers: dict[int, int] = {}
        self._values: list[Any] = []  # by these numbers; kept, so that no id is used again

    def slot(self, path: str, value: Any) -> tuple[int, Any]:
        """Return the number of the first object of a value at a path, and the value in plain form.

        Raises:
            CannotPackError: If it cannot be stored; says why.
        """
        self._path, first = path, len(self._values)
        try:
            return first, self._pack(value, 0)
        except CannotPackError:
            for part in self._values[first:]:  # of which nothing is stored
                del self._numbers[id(part)]
            del self._values[first:]
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
        kind = type(value)
        if kind in ATOMS and kind is not complex:
            return ["=", self._atom(value)]
        if kind in (np.ndarray, np.memmap):
            if not _is_own(value) and self._owner_of(value) is not None:
                raise CannotPackError("an array in the memory of a parameter")
            return ["numbers", np.array(self._array(value))]
        if issubclass(kind, np.generic):
            return ["=", self._array(value)]
        if (reference := self._reference(value, self._path)) is not None:
            return ["reference", reference]
        if issubclass(kind, ms.Tensor) and not is_users_class(kind):
            return self._tensor(value)
        if issubclass(kind, GENERATORS) and not is_users_class(kind) and (state := generator_of(value)) is not None:
            return ["generator", kind.__name__, self._pack(state, depth + 1)]
        if kind in _SEQUENCES.values():
            items = sorted(value, key=lambda item: text_of(item) or "") if kind in (set, frozenset) else value
            return [kind.__name__, self._items(items, depth)]
        if kind is dict:
            return ["dict", self._pairs(items_of_dict(value), depth)]
        if issubclass(kind, enum.Enum):
            return ["member", self._class(kind), own_attributes(value)["_name_"]]
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return ["named tuple", self._class(kind), self._items(tuple.__iter__(value), depth)]
        return self._object(value, depth) if is_users_class(kind) else self._made(value, depth)

    def _object(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        if issubclass(kind, _NOT_OBJECTS) or extends_plain(kind):
            raise CannotPackError(f"a {kind.__module__}.{kind.__qualname__}")
        parts = [[name, self._pack(part, depth + 1)] for name, part in attributes_of(value)]
        held: Any = None
        if issubclass(kind, dict):
            held = self._pairs(items_of_dict(value), depth)
        elif issubclass(kind, list):
            held = self._items(list.__iter__(value), depth)
        place = self._place_of(value)
        return ["object", self._class(kind), parts, held, place and ["reference", place]]

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
        if type(value) is str and not value.isascii():
            try:
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
    """Puts packed values back, in the order in which they were packed.

    Args:
        resolve: Returns the object of a reference.
        class_of: Returns a class by module and name.
        owner_of: As for `Packer`.

    The first two raise `CannotPackError` if this process has none.
    """

    def __init__(
        self,
        resolve: Callable[[Any], Any],
        class_of: Callable[[str, str], Any],
        owner_of: Callable[[Any], str | None] = lambda _: None,
    ) -> None:
        self._resolve, self._class_of, self._owner_of = resolve, class_of, owner_of
        self._values: list[Any] = []
        self.filled: dict[int, Any] = {}  # what was there and has its content already, by id
        self.referred: dict[int, Any] = {}  # what was there and is referred to, by id; only itself gets its content

    def slot(self, first: int, packed: Any, present: Any = None) -> Any:
        """Return the value; ``present`` itself, with its content replaced, if it is of the same kind and can change.

        Raises:
            CannotPackError: If this process lacks what it refers to.
        """
        self._values += [_LOST] * (first - len(self._values))  # of slots that could not be put back
        return self._value(packed, present)

    def _value(self, packed: Any, present: Any = None) -> Any:
        if packed[0] in _IDENTICAL:  # one that is there becomes one of them
            present = self._own(packed, present)
            present = None if id(present) in self.filled else present
        value = self._unpacked(packed[0], packed[1:], present)
        if packed[0] in _IDENTICAL:
            self.filled[id(value)] = value
            self._values.append(value)
        return value

    def _own(self, packed: Any, present: Any) -> Any:
        """Return what is there of an object, wherever that is."""
        if packed[0] == "object" and packed[4] is not None:
            with contextlib.suppress(CannotPackError):
                return self._resolve(packed[4][1])
        return None if packed[0] == "object" and id(present) in self.referred else present

    def _unpacked(self, tag: str, held: Sequence[Any], present: Any) -> Any:  # noqa: PLR0911 - as `_packed`
        if tag == "=":
            return held[0]
        if tag == "again":
            if self._values[held[0]] is _LOST:
                raise CannotPackError("a part of it could not be put back")
            return self._values[held[0]]
        if tag == "numbers":
            return self._array(present, held[0])
        if tag in _SEQUENCES:
            kind = _SEQUENCES[tag]
            items = self._parts(held[0], present if type(present) is kind and tag in ("list", "tuple") else ())
            return refilled(present, items) if type(present) is kind and kind in (list, set) else kind(items)
        if tag == "dict":
            pairs = self._pairs(held[0], present if type(present) is dict else {})
            return refilled(present, pairs) if type(present) is dict else pairs
        if tag == "object":
            return self._object(held, present)
        if tag == "made":
            return self._made(held, present)
        if tag == "named tuple":
            kind = self._class_of(*held[0])
            return tuple.__new__(kind, self._parts(held[1], present if type(present) is kind else ()))
        if tag == "member":
            return self._class_of(*held[0]).__members__[held[1]]
        if tag == "tensor":
            return self._tensor(present, *held)
        if tag == "generator":
            return _filled_generator(present, held[0], self._value(held[1]))
        return self._resolve(held[0])  # "reference"

    def _array(self, present: Any, value: Any) -> Any:
        kinds = (np.ndarray, np.memmap)
        if type(present) not in kinds or (present.dtype, present.shape) != (value.dtype, value.shape):
            return np.array(value)
        if not present.flags.writeable and present.base is not None:
            return present  # it shows the memory of another array, which is put back itself
        if not present.flags.writeable or not (_is_own(present) or self._owner_of(present) is None):
            return np.array(value)
        present[...] = value
        return present

    def _tensor(self, present: Any, dtype: str, bits: Any, name: str | None, requires_grad: bool | None) -> Any:
        tensor = tensor_of(bits, dtype)
        if name is None:
            return tensor
        is_same = isinstance(present, ms.Parameter) and present.shape == tensor.shape and present.dtype == tensor.dtype
        if not is_same:
            return ms.Parameter(tensor, name=name, requires_grad=bool(requires_grad))
        if self._owner_of(present) is None:
            assign(present, bits, dtype)
        else:  # a parameter that is restored already has this memory, as a target may have before the first step
            present.set_data(tensor)
        return present

    def _made(self, held: Sequence[Any], present: Any) -> Any:
        """Return an object of the standard library, or the one that is there, filled with its content."""
        name, arguments, items, pairs, state = held
        made = _MAKERS[name](*self._parts(arguments, ()))
        before = present if type(present) is type(made) else None
        if items:
            made.extend(self._parts(items, before or ()))
        if pairs:
            made.update(self._pairs(pairs, before or {}))
        if (state := self._value(state)) is not None:
            made.__setstate__(state) if hasattr(made, "__setstate__") else vars(made).update(state)
        is_filled = issubclass(type(made), (deque, dict, bytearray)) and before is not None
        is_same = is_filled and getattr(made, "maxlen", None) == getattr(before, "maxlen", None)
        return refilled(before, made) if is_same else made

    def _object(self, held: Sequence[Any], present: Any) -> Any:
        named, parts, content, _ = held
        kind = self._class_of(*named)
        if type(present) is not kind and any("__new__" in vars(base) and is_users_class(base) for base in kind.__mro__):
            raise CannotPackError(f"the class {kind.__qualname__} makes its objects in a __new__ of its own")
        target = present if type(present) is kind else kind.__new__(kind)
        before = dict(attributes_of(target))
        for name, packed in parts:
            set_attribute(target, name, self._value(packed, before.get(name)))
        if issubclass(kind, dict):
            items = self._pairs(content, target)
            dict.clear(target)
            dict.update(target, items)
        elif issubclass(kind, list):
            list.__setitem__(target, slice(None), self._parts(content, list.__iter__(target)))
        return target

    def _parts(self, packed: Sequence[Any], present: Iterable[Any]) -> list[Any]:
        before = [*present][: len(packed)]
        before += [None] * (len(packed) - len(before))
        return [self._value(part, known) for part, known in zip(packed, before, strict=True)]

    def _pairs(self, packed: Sequence[Any], present: dict[Any, Any]) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, part in packed:
            name = self._value(key)
            items[name] = self._value(part, dict.get(present, name))
        return items


def refilled(present: Any, items: Any) -> Any:
    """Return a list, set, dict or deque with other items."""
    present.clear()
    present.update(items) if isinstance(present, (dict, set)) else present.extend(items)
    return present


def _is_own(value: Any) -> bool:
    """Return whether an array, or the one that it shows, has memory of NumPy's; any other may be a parameter's."""
    while type(value.base) in (np.ndarray, np.memmap):
        value = value.base
    return value.base is None or type(value) is np.memmap


def _filled_generator(present: Any, kind: str, state: Any) -> Any:
    if type(present).__name__ != kind:
        make: Any = getattr(random if kind == "Random" else np.random, kind)
        present = make(getattr(np.random, state["bit_generator"])()) if kind == "Generator" else make()
    if isinstance(present, np.random.BitGenerator):
        present.state = state
    else:
        restore_generator(present, state)
    return present
