"""Stores objects that do not define their own checkpoint state.

Guarantees: an object with its own ``state_dict()`` and ``load_state_dict()`` is stored by them. For any other object,
every parameter that it holds, and every buffer of a cell, is stored under its place in it (``scale_value``,
``_last_lr/0``), compared before anything is changed, and restored bit for bit into its present storage. The plain
attributes (numbers, texts, arrays, tensors, containers of them) of the user's objects are stored too. MindSpore's
objects keep what they change in parameters. Main thread only.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import setitem
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import mindspore as ms
from mindspore import nn

from ckptkit.core.tensors import DTYPES, leaf_of
from ckptkit.core.text import listed, some
from ckptkit.core.tree import encode_tree
from ckptkit.errors import StateMismatchError
from ckptkit.mindspore.observe.attributes import attributes_of
from ckptkit.mindspore.observe.parts import EVERY_CELL
from ckptkit.mindspore.observe.users import is_of_users
from ckptkit.mindspore.parameters.apply import assign, tensor_of
from ckptkit.mindspore.parameters.parameters import Buffers
from ckptkit.mindspore.parameters.roles import all_of
from ckptkit.mindspore.rng import capture_rng, generator_state, restore_rng
from ckptkit.mindspore.state.digest import digest_of_value, in_words
from ckptkit.mindspore.state.generators import GeneratorHolder

_log = logging.getLogger("ckptkit")

_MAX_DEPTH = 8  # of containers and objects in an object; deeper ones do not count as its state
_CONTAINERS = (Mapping, list, tuple, deque)
_OTHERS = (deque, Counter, defaultdict)  # containers that are stored, beside lists, tuples and dicts
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")  # in the text of a key: in another process it is another one


@runtime_checkable
class Stateful(Protocol):
    """Defines an object of the user's that a checkpoint can hold."""

    def state_dict(self) -> Any:
        """Return plain values, containers and NumPy arrays; must not advance the object."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` returned, in another process."""
        ...


@dataclass(frozen=True)
class NamedAttributes:
    """Holds the arguments of `attributes`: an object, and the names of its attributes to store."""

    owner: Any
    names: tuple[str, ...]


def attributes(owner: Any, *names: str) -> NamedAttributes:
    """Store some attributes of an object by name, if its class cannot be given the two methods.

    As in ``StateManager(..., trainer=ckptkit.attributes(trainer, "step", "accumulate_grads"))``, or in ``stateful=`` of
    `CheckpointCallback`. A restore writes parameters in place and assigns everything else. Other attributes of the
    object are not stored.

    Args:
        owner: The object.
        names: Names of attributes that have a value when training begins: None, a number, a text, an array, a tensor, a
            parameter, or a list, tuple or dict of these.

    Raises:
        ValueError: If there are no names, or the object has no attribute of that name.
        TypeError: If an attribute is something else.
    """
    missing = [name for name in names if not hasattr(owner, name)]
    if missing or not names:
        raise ValueError(
            f"ckptkit.attributes: {type(owner).__name__} has no attribute {', '.join(missing) or 'without a name'}. "
            "Name attributes that have a value when training begins; None counts as a value"
        )
    for name in names:
        _refuse_other_kinds(owner, name)
    return NamedAttributes(owner, names)


class Reporting:
    """Marks an object of ckptkit's own; ``reported`` are parts of its state that only repeat reported losses."""

    reported: frozenset[str]


class _Place(NamedTuple):
    """Holds a parameter or buffer, which is written in place, or a value and the function that replaces it."""

    value: Any
    put: Callable[[Any], None] | None

    @property
    def packed(self) -> list[Any]:
        """The value in the form that `ckptkit.core.tree` stores."""
        return _bits(self.value) if self.put is None else _packed(self.value)


class ParameterHolder:
    """Stores an object's parameters, buffers and plain attributes, as a stateful object."""

    def __init__(self, name: str, one: Any) -> None:
        self._name = name
        self._one = one

    def parameters(self) -> list[ms.Parameter]:
        """Return the parameters that it stores."""
        return [place.value for place in self.places().values() if isinstance(place.value, ms.Parameter)]

    def tensors(self) -> dict[str, ms.Tensor]:
        """Return the parameters and buffers that it stores, by place."""
        return {place: one.value for place, one in self.places().items() if one.put is None}

    def state_dict(self) -> dict[str, Any]:
        """Return, by place, a parameter's dtype and bits, which may be live memory, or a packed value."""
        return {place: one.packed for place, one in self.places().items()}

    def check(self, state: Any) -> None:
        """Compare the parameters with those of a checkpoint, before anything is changed."""
        stored = state if isinstance(state, dict) else {}
        found = {place: packed for place, packed in stored.items() if packed[0] in DTYPES}
        now = self.places()
        mine = {place: one.packed for place, one in now.items() if one.put is None}
        lost = {place for place in stored.keys() - found.keys() - now.keys() if self._late(place) is None}
        problems = [f"missing in the checkpoint: {place}" for place in sorted(mine.keys() - found.keys())]
        problems += [f"not in this object: {place}" for place in sorted((found.keys() - mine.keys()) | lost)]
        for place in sorted(mine.keys() & found.keys()):
            (dtype, array), (my_dtype, my_array) = found[place], mine[place]
            if (dtype, array.shape) != (my_dtype, my_array.shape):
                problems.append(
                    f"{place}: the checkpoint has {dtype} {list(array.shape)}, "
                    f"this object has {my_dtype} {list(my_array.shape)}"
                )
        if problems:
            raise StateMismatchError(
                f"the checkpoint does not fit the stateful object {self._name}. Nothing was changed. Build it as it "
                f"was, or start under another root:{listed(problems)}"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each parameter and each attribute its stored value."""
        now = self.places()
        taken = []
        for place, packed in state.items():
            if packed[0] in DTYPES:
                assign(now[place].value, packed[1], packed[0])
                continue
            value, put = _unpacked(packed), now[place].put if place in now else self._late(place)
            if put is not None and (place not in now or digest_of_value(now[place].value) != digest_of_value(value)):
                put(_refilled(now[place].value, value) if place in now else value)
                taken.append(f"{place} = {in_words(value)}")
        if taken:
            _log.info("%s continues with %s from the checkpoint", self._name, some(taken))

    def _late(self, place: str) -> Callable[[Any], None] | None:
        """Return what sets an attribute that the stored object had and this one does not have yet."""
        if "/" in place or not is_of_users(self._one):
            return None
        return partial(setattr, self._one, place.removeprefix("."))

    def places(self) -> dict[str, _Place]:
        """Return what is stored of the object, by its place in it."""
        one = self._one
        if not isinstance(one, NamedAttributes):
            return dict(_places(one, "", None, plain=True))
        found: dict[str, _Place] = {}
        for name in one.names:
            _refuse_other_kinds(one.owner, name)
            found.update(_places(getattr(one.owner, name), name, partial(setattr, one.owner, name), plain=True))
        return found


def stateful_of(name: str, one: Any) -> Stateful:
    """Return the stateful object that stores ``one``, given as ``name``."""
    if generator_state(one) is not None:
        return GeneratorHolder(one)
    # nn.Cell has both methods, but they take and return parameters, which a section cannot store.
    own = not isinstance(one, nn.Cell) or type(one).state_dict is not nn.Cell.state_dict
    if own and not isinstance(one, type) and all(_has(one, method) for method in ("state_dict", "load_state_dict")):
        return cast(Stateful, one)
    holder = ParameterHolder(name, one)
    if not isinstance(one, NamedAttributes) and not holder.tensors():
        raise TypeError(
            f"{name}: a {type(one).__name__} has no state_dict() and load_state_dict(), and no parameters outside of "
            "cells. Give it the two methods, name the attributes to store: "
            f'{name}=ckptkit.attributes(it, "NAME", ...), or give a cell by a name of its own'
        )
    return holder


def _has(one: Any, method: str) -> bool:
    try:
        return callable(getattr(one, method))  # on the instance: it may delegate the method to another object
    except (AttributeError, LookupError):  # ``__getattr__ = dict.__getitem__`` raises KeyError
        return False


def _places(
    one: Any, place: str, put: Callable[[Any], None] | None, *, plain: bool, above: tuple[int, ...] = ()
) -> Iterator[tuple[str, _Place]]:
    """Yield what is stored of ``one``, by its place; ``plain`` says whether to store values besides parameters."""
    if isinstance(one, ms.Parameter):
        yield place or "value", _Place(one, None)
    elif plain and put is not None and _is_storable(one):
        yield place, _Place(one, put)
    elif len(above) < _MAX_DEPTH and id(one) not in above:
        if isinstance(one, nn.Cell):
            if place:
                return  # a cell inside an object (a scheduler's optimizer) is state of the training's cells
            parameters = {parameter.name: parameter for parameter in all_of(one)}
            tensors = {**parameters, **Buffers([one], parameters).now()}
            yield from ((name, _Place(tensor, None)) for name, tensor in tensors.items())
        plain = plain and (isinstance(one, _CONTAINERS) or is_of_users(one))
        for key, value, put_there in _children(one, put):
            there = f"{place}/{key}" if place else str(key)
            yield from _places(value, there, put_there, plain=plain, above=(*above, id(one)))


def _children(one: Any, put: Callable[[Any], None] | None) -> Iterator[tuple[Any, Any, Callable[[Any], None] | None]]:
    """Yield items or attributes, each with the function that replaces it, or None; ``put`` replaces ``one`` itself."""
    if isinstance(one, Mapping):
        for index, (key, value) in enumerate(one.items()):
            yield f"#{index}" if _has_address(key) else key, value, partial(setitem, one, key)
    elif isinstance(one, (list, deque)):
        yield from ((index, value, partial(setitem, one, index)) for index, value in enumerate(one))
    elif isinstance(one, tuple):
        replace = partial(_put_into_tuple, one, [*one], put) if put is not None else None
        yield from ((index, value, replace and partial(replace, index)) for index, value in enumerate(one))
    elif isinstance(one, nn.Cell):
        bare = EVERY_CELL if is_of_users(one) else vars(one).keys()
        own = ((name, value) for name, value in attributes_of(one) if name not in bare)
        yield from ((f".{name}", value, partial(setattr, one, name)) for name, value in own)
    elif not isinstance(one, (type, ms.Tensor, ModuleType, FunctionType, MethodType)):
        yield from ((name, value, partial(setattr, one, name)) for name, value in attributes_of(one))


def _has_address(key: object) -> bool:
    # The type is asked first: a save walks through all items, and most of them have numbers for keys.
    return not isinstance(key, int) and bool(_ADDRESS.search(str(key)))


def _put_into_tuple(one: Any, items: list[Any], put: Callable[[Any], None], index: int, value: Any) -> None:
    """Replace a tuple by one with another item; ``items`` are its own, with those that were replaced before."""
    items[index] = value
    put(type(one)._make(items) if hasattr(one, "_make") else tuple(items))


def _refilled(one: Any, value: Any) -> Any:
    """Fill a list, dict or deque with the items of ``value``: others may hold it, and a deque has a largest length."""
    if type(one) is not type(value) or not isinstance(one, (list, dict, deque)):
        return value
    one.clear()
    if isinstance(one, dict):
        one.update(value)
    else:
        one.extend(value)
    return one


def _refuse_other_kinds(owner: Any, name: str) -> None:
    value = getattr(owner, name)
    if not fits(value):
        raise TypeError(
            f"ckptkit.attributes: {type(owner).__name__}.{name} is a {type(value).__name__}; only numbers, texts, "
            "arrays, tensors, parameters and lists, tuples and dicts of them can be stored. Give an object or a cell "
            "by a name of its own"
        )


def fits(one: Any, inside: tuple[int, ...] = ()) -> bool:
    """Return whether all of ``one`` can be stored: values, and parameters in containers.

    ``inside`` holds the ids of the containers around it.
    """
    if isinstance(one, ms.Parameter) or _is_storable(one):
        return True
    if not isinstance(one, (dict, list, tuple)) or id(one) in inside:
        return False
    return all(fits(each, (*inside, id(one))) for each in (one.values() if isinstance(one, dict) else one))


def _is_storable(one: Any, inside: tuple[int, ...] = ()) -> bool:
    """Return whether ``one`` is a value without parameters that a checkpoint stores whole; ``inside`` as for `fits`."""
    if isinstance(one, ms.Tensor):
        return not isinstance(one, ms.Parameter) and not one.has_init
    if type(one) not in (dict, OrderedDict, list, tuple, *_OTHERS):
        return _encodes(one)
    if id(one) in inside or (isinstance(one, dict) and not _encodes(dict.fromkeys(one))):
        return False
    return all(_is_storable(each, (*inside, id(one))) for each in (one.values() if isinstance(one, dict) else one))


def _encodes(one: Any) -> bool:
    try:
        encode_tree(one, "", [])
    except (TypeError, ValueError):
        return False
    return True


def _bits(one: ms.Tensor) -> list[Any]:
    leaf = leaf_of("", one.asnumpy(), role="state")
    return [leaf.dtype, leaf.array]


def _packed(one: Any) -> list[Any]:
    """Return ``one`` in the form that `ckptkit.core.tree` stores; `_unpacked` reverses it, except for parameters."""
    if isinstance(one, ms.Tensor):
        return _bits(one) if isinstance(one, ms.Parameter) else ["tensor", _bits(one)]
    if _encodes(one):
        return ["plain", one]
    if isinstance(one, dict):
        return [type(one).__name__, [[key, _packed(value)] for key, value in one.items()]]
    if isinstance(one, deque):
        return ["deque", [one.maxlen, [_packed(value) for value in one]]]
    return [type(one).__name__, [_packed(value) for value in one]]


def _unpacked(packed: list[Any]) -> Any:
    kind, held = packed
    if kind == "tensor":
        return tensor_of(held[1], held[0])
    if kind == "plain":
        return held
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(map(_unpacked, held))
    if kind == "deque":
        return deque(map(_unpacked, held[1]), held[0])
    items = {key: _unpacked(value) for key, value in held}
    return defaultdict(None, items) if kind == "defaultdict" else _DICTS[kind](items)


def told_by(one: Stateful, keep: Collection[str] = ()) -> Any:
    """Return the ``state_dict()`` of an object; generators of the process from which it draws are set back.

    Generators in ``keep`` are left alone, and so are all for ckptkit's own objects, which draw nothing: a thread of the
    data may draw at the same time.
    """
    before = capture_rng()
    state = one.state_dict()
    if is_of_users(one) and digest_of_value(before) != digest_of_value(capture_rng()):
        restore_rng(before, keep)
    return state


def digests_by_place(state: Any) -> dict[str, str]:
    """Return digests by place, computed at once, since a state may be the object's own lists."""
    return {place: digest_of_value(one) for place, one in _places_in(state, "")}


def _places_in(state: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        items = [*state.items()]
    elif isinstance(state, (list, tuple)):
        items = [*enumerate(state)]
    else:
        items = []
    if not items:
        yield place or "its value", state
    for key, one in items:
        yield from _places_in(one, f"{place}/{key}" if place else str(key))
