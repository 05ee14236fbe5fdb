"""Packs a value of the user's for a checkpoint, and puts it back in another process: `Packer` and `Unpacker`.

What can be packed: plain values, arrays, tensors, generators, containers and iterators of the standard library over
these, objects of classes that the next process can name, and references to what the next process has too: cells,
parameters, functions, classes, objects with a path of their own. An object of the user's is made again without running
its class: its attributes are set. One of the standard library is made as its ``__reduce_ex__`` says, by a function of
`_MAKERS`. Anything else is refused with `CannotPackError`.

A value is built anew, and then merged into the one that is there: a container, array, generator or object there is
changed in place, since others may hold it. One that occurs twice in a value occurs twice afterwards.

Guarantees: what `Packer.slot` returns is accepted by `ckptkit.core.tree.encode_tree`. No code of the user's runs. No
pickle. Main thread only.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import random
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from pathlib import PosixPath, PurePosixPath
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ckptkit.core.tensors import dtype_of, leaf_of
from ckptkit.mindspore.observe.attributes import attributes_of, items_of_dict, own_attributes, set_attribute
from ckptkit.mindspore.observe.users import is_users_class
from ckptkit.mindspore.observe.values import ATOMS, GENERATORS, extends_plain, generator_of, text_of
from ckptkit.mindspore.parameters.apply import assign, tensor_of
from ckptkit.mindspore.rng import spawned_of

_MOST_DEPTH = 24
_LEAST_ADDRESS = 1 << 24
_ITEM_BYTES = 8  # that an item counts for, whatever it is
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
# What a checkpoint may call to make an object again.
_ALL_MAKERS: tuple[Any, ...] = (
    *(iter, reversed, enumerate, zip, map, filter, range, slice, bytearray, np.dtype),
    *(deque, OrderedDict, Counter, defaultdict, types.SimpleNamespace, functools.partial),
    *(decimal.Decimal, fractions.Fraction, PurePosixPath, PosixPath),
    *(datetime.datetime, datetime.timedelta, datetime.timezone, datetime.date, datetime.time),
    *(type(iter(deque())), type(reversed(deque()))),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
)
_MAKERS = {maker.__qualname__: maker for maker in _ALL_MAKERS}
_BASES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)  # that objects of the user's may extend
_DICTS = (OrderedDict, dict)
_NOT_OBJECTS: tuple[Any, ...] = (
    nn.Cell,
    ms.Tensor,
    np.ndarray,
    BaseException,
    frozenset,
    tuple,
    type,
    types.ModuleType,
)
_NOT_OBJECTS += (*GENERATORS, ctypes.Structure.__base__)  # the base class of all types of C
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
    """

    def __init__(
        self,
        reference: Callable[[Any, str], Any],
        most_bytes: int,
        owner_of: Callable[[Any], str | None] = lambda _: None,
        addresses: Collection[int] = (),
    ) -> None:
        self._reference, self._owner_of, self._addresses = reference, owner_of, addresses
        self._left_bytes = most_bytes
        self._path = ""
        self._places: dict[int, int] = {}

    def slot(self, path: str, value: Any) -> Any:
        """Return the value at a path in plain form; CannotPackError if it cannot be stored."""
        self._path, self._places = path, {}
        return self._pack(value, 0)

    def _pack(self, value: Any, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise CannotPackError("nested too deep, or in itself")
        if id(value) in self._places:
            return ["again", self._places[id(value)]]
        self._count(_ITEM_BYTES)
        packed = self._packed(value, depth)
        if packed[0] in _IDENTICAL:
            self._places[id(value)] = len(self._places)
        return packed

    def _packed(self, value: Any, depth: int) -> Any:  # noqa: PLR0911 - one case per kind reads like a table
        kind: Any = type(value)
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
            children = spawned_of(value) if kind is np.random.Generator else 0
            return ["generator", kind.__name__, self._pack(state, depth + 1), children]
        if kind in _SEQUENCES.values():
            items = sorted(value, key=lambda item: text_of(item) or "") if kind in (set, frozenset) else value
            return [kind.__name__, self._items(items, depth)]
        if kind is dict:
            return ["dict", self._pairs(items_of_dict(value), depth)]
        if issubclass(kind, enum.Enum):
            return ["member", self._class(kind), own_attributes(value)["_name_"]]
        if kind is types.MethodType and type(value.__func__) is types.FunctionType:
            return ["method", self._pack(value.__self__, depth + 1), value.__func__.__name__]
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return ["named tuple", self._class(kind), self._items(tuple.__iter__(value), depth)]
        return self._object(value, depth) if is_users_class(kind) else self._made(value, depth)

    def _object(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        if issubclass(kind, _NOT_OBJECTS) or extends_plain(kind):
            raise CannotPackError(f"a {kind.__module__}.{kind.__qualname__}")
        if any("__new__" in vars(base) and is_users_class(base) for base in kind.__mro__):
            raise CannotPackError(f"a {kind.__qualname__}, whose class has a __new__ of its own")
        parts = [[name, self._pack(part, depth + 1)] for name, part in attributes_of(value)]
        base, held = _base_of(kind), None
        if base in _DICTS:
            held = self._pairs(items_of_dict(value), depth)
        elif base is not None:
            held = self._items(base.__iter__(value), depth)
        return ["object", self._class(kind), parts, held, _most_of(base, value)]

    def _made(self, value: Any, depth: int) -> Any:
        maker, arguments, state, items, pairs = _reduced(value)
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
        if is_parameter and (owner := self._owner_of(value)) is not None:
            raise CannotPackError(f"a parameter in the memory of {owner}")
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
    """Puts packed values back.

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
        self._built_before: list[Any] = []
        self._merged_before: dict[int, Any] = {}  # by the id of what was built, which lives until the slot is done

    def slot(self, packed: Any, present: Any = None) -> Any:
        """Return the value; ``present`` itself, with its content replaced, if it is of the same kind and can change.

        Raises:
            CannotPackError: If this process lacks what it refers to.
        """
        self._built_before, self._merged_before = [], {}
        return self._merged(present, self._build(packed))

    def _build(self, packed: Any) -> Any:
        value = self._built(packed)
        if packed[0] in _IDENTICAL:
            self._built_before.append(value)
        return value

    def _built(self, packed: Any) -> Any:  # noqa: PLR0911, PLR0912 - as `_packed`
        match packed:
            case ["=", value]:
                return value
            case ["again", place]:
                return self._built_before[place]
            case ["numbers", value]:
                return np.array(value)
            case ["dict", pairs]:
                return dict(self._pairs(pairs))
            case ["object", named, parts, content, most]:
                return self._object(self._class_of(*named), parts, content, most)
            case ["made", name, arguments, items, pairs, state]:
                return self._made(_MAKERS[name], arguments, items, pairs, state)
            case ["named tuple", named, items]:
                return tuple.__new__(self._class_of(*named), self._items(items))
            case ["member", named, name]:
                return self._class_of(*named).__members__[name]
            case ["tensor", dtype, bits, name, requires_grad]:
                tensor = tensor_of(bits, dtype)
                return tensor if name is None else ms.Parameter(tensor, name=name, requires_grad=bool(requires_grad))
            case ["generator", kind, state, children]:
                return _new_generator(kind, self._build(state), children)
            case ["method", owner, name]:
                owner = self._build(owner)
                function = next(vars(base)[name] for base in type(owner).__mro__ if name in vars(base))
                return types.MethodType(function, owner)
            case ["reference", reference]:
                value = self._resolve(reference)
                self._merged_before[id(value)] = value
                return value
            case [kind, items]:
                return _SEQUENCES[kind](self._items(items))

    def _items(self, packed: Iterable[Any]) -> list[Any]:
        return [self._build(part) for part in packed]

    def _pairs(self, packed: Iterable[Any]) -> list[tuple[Any, Any]]:
        return [(self._build(key), self._build(part)) for key, part in packed]

    def _object(self, kind: Any, parts: Any, content: Any, most: int | None) -> Any:
        base = _base_of(kind)
        value = (base or object).__new__(kind)
        for name, packed in parts:
            set_attribute(value, name, self._build(packed))
        if base is not None:
            _fill(base, value, self._pairs(content) if base in _DICTS else self._items(content), most)
        return value

    def _made(self, maker: Any, arguments: Any, items: Any, pairs: Any, state: Any) -> Any:
        value = maker(*self._items(arguments))
        value.extend(self._items(items)) if items else None
        value.update(self._pairs(pairs)) if pairs else None
        if (made_state := self._build(state)) is not None:
            value.__setstate__(made_state) if hasattr(value, "__setstate__") else vars(value).update(made_state)
        return value

    def _merged(self, present: Any, value: Any) -> Any:
        if id(value) not in self._merged_before:
            self._merged_before[id(value)] = self._merge(present, value)
        return self._merged_before[id(value)]

    def _merge(self, present: Any, value: Any) -> Any:  # noqa: PLR0911 - one case per kind
        kind: Any = type(value)
        if kind is np.ndarray and type(present) in (np.ndarray, np.memmap):
            return self._array(present, value)
        if type(present) is not kind or kind in ATOMS:
            return value
        if issubclass(kind, tuple):
            return tuple.__new__(kind, self._all_merged(present, value))
        if issubclass(kind, ms.Parameter):
            return self._parameter(present, value)
        if issubclass(kind, GENERATORS):
            children = spawned_of(value) if kind is np.random.Generator else 0
            return _set_generator(present, generator_of(value), children)
        base = _base_of(kind)
        is_object = is_users_class(kind) or kind is types.SimpleNamespace
        if (base is None and not is_object) or _most_of(base, present) != _most_of(base, value):
            return value
        before = dict(attributes_of(present))
        for name, part in attributes_of(value):
            set_attribute(present, name, self._merged(before.get(name), part))
        if base in _DICTS:
            content = [(key, self._merged(dict.get(present, key), part)) for key, part in items_of_dict(value)]
            _fill(base, present, content, None)
        elif base is not None:
            content = self._all_merged(() if base is set else base.__iter__(present), base.__iter__(value))
            _fill(base, present, content, _most_of(base, present))
        return present

    def _all_merged(self, present: Iterable[Any], values: Iterable[Any]) -> list[Any]:
        values = [*values]
        before = [*present][: len(values)]
        before += [None] * (len(values) - len(before))
        return [self._merged(held, value) for held, value in zip(before, values, strict=True)]

    def _array(self, present: Any, value: Any) -> Any:
        if (present.dtype, present.shape) != (value.dtype, value.shape):
            return value
        if not present.flags.writeable:  # it shows the memory of another array, if it has none itself
            return present if present.base is not None else value
        if not _is_own(present) and self._owner_of(present) is not None:
            return value
        present[...] = value
        return present

    def _parameter(self, present: Any, value: Any) -> Any:
        if (present.shape, present.dtype) != (value.shape, value.dtype):
            return value
        if self._owner_of(present) is None:
            leaf = leaf_of("", value.asnumpy(), role="state")
            assign(present, leaf.array, leaf.dtype)
        else:  # a parameter that is restored already has this memory
            present.set_data(value)
        return present


def _base_of(kind: Any) -> Any:
    return next((base for base in _BASES if issubclass(kind, base)), None)


def _most_of(base: Any, value: Any) -> Any:
    return deque.maxlen.__get__(value) if base is deque else None


def _fill(base: Any, holder: Any, content: list[Any], most: int | None) -> None:
    """Replace the content of a container by methods of its base class, and not by those of the user's."""
    if base is deque:
        deque.__init__(holder, content, most)
        return
    base.clear(holder)
    if base in _DICTS:
        for key, value in content:
            base.__setitem__(holder, key, value)
    else:
        (base.update if base is set else base.extend)(holder, content)


def _reduced(value: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return how an object of the standard library is made again: a maker, its arguments, state, items and pairs."""
    kind: Any = type(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 deprecates what 3.14 removes for iterators of itertools
            reduced = value.__reduce_ex__(4)
    except TypeError:
        reduced = ()
    maker = reduced[0] if type(reduced) is tuple and reduced else None
    if _MAKERS.get(getattr(maker, "__qualname__", "")) is not maker or maker is None:
        raise CannotPackError(f"a {kind.__module__}.{kind.__qualname__}")
    maker, arguments, *rest = reduced
    state, items, pairs = [*rest, None, None, None][:3]
    return maker, arguments, state, items, pairs


def _is_own(value: Any) -> bool:
    """Return whether an array, or the one that it shows, has memory of NumPy's; any other may be a parameter's."""
    while type(value.base) in (np.ndarray, np.memmap):
        value = value.base
    return value.base is None or type(value) is np.memmap


def _new_generator(kind: str, state: Any, children: int) -> Any:
    if kind == "Generator":
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    else:
        generator = getattr(random if kind == "Random" else np.random, kind)()
    return _set_generator(generator, state, children)


def _set_generator(generator: Any, state: Any, children: int) -> Any:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = {name: part for name, part in state.items() if name != "spawned"}
        if children > spawned_of(generator):
            generator.spawn(children - spawned_of(generator))
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)
    return generator
