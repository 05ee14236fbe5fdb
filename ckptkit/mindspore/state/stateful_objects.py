"""Stores objects that do not define their own checkpoint state, and checks that the others take theirs.

Guarantees: an object with its own ``state_dict()`` and ``load_state_dict()`` is stored by them. A random generator
gives the same numbers after a restore, and spawns the same generators. For any other object, every parameter that it
holds, and every buffer of a cell, is stored under its place in it (``scale_value``, ``_last_lr/0``), compared before
anything is changed, and restored bit for bit into its present storage. The plain attributes (numbers, texts, arrays,
tensors, containers of them) of the user's objects are stored too. MindSpore's objects keep what they change in
parameters. Of an `AccumulationTrainCell` other than the one that counts for the training, such as a GAN's
discriminator, counters and switches are stored, too, wherever the training as a whole is in its cycle; K and options
are compared before anything is changed. Main thread only.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import setitem
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback

from ckptkit.core.state_encoding import encode_tree
from ckptkit.core.tensors import DTYPES, leaf_of
from ckptkit.core.text import listed, some
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.observe.attributes import attributes_of
from ckptkit.mindspore.observe.packing import refilled
from ckptkit.mindspore.observe.user_code import is_of_users
from ckptkit.mindspore.observe.value_kinds import EVERY_CELL
from ckptkit.mindspore.parameters.apply import assign, tensor_of
from ckptkit.mindspore.parameters.parameters import CellBuffers
from ckptkit.mindspore.parameters.roles import all_of
from ckptkit.mindspore.rng import capture_rng, generator_state, restore_generator, restore_rng, spawned_of
from ckptkit.mindspore.state.cell_settings import Switches
from ckptkit.mindspore.state.digest import digest_of_value, digests_by_place, in_words
from ckptkit.mindspore.train.cell import AccumulationTrainCell, CycleCounters
from ckptkit.mindspore.train.micro_steps import OwnCounting, accumulation_of
from ckptkit.mindspore.train.restored_k import check_cycle, check_same_training

_log = logging.getLogger("ckptkit")

_MAX_DEPTH = 8  # of containers and objects in an object; deeper ones do not count as its state
_CONTAINERS = (Mapping, list, tuple, deque)
_PACKED = (dict, OrderedDict, list, tuple, deque, Counter, defaultdict)  # containers that are stored, item by item
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")  # in the text of a key: in another process it is another one
_Put = Callable[[Any], None]  # replaces a value where it is


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


class _Place(NamedTuple):
    """Holds a parameter or buffer, which is written in place, or a value and the function that replaces it."""

    value: Any
    put: _Put | None

    @property
    def packed(self) -> list[Any]:
        return _bits(self.value) if self.put is None else _packed(self.value) or []


class GeneratorHolder:
    def __init__(
        self, generator: np.random.Generator | np.random.RandomState | np.random.SeedSequence | random.Random
    ) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        return generator_state(self._generator)

    def check(self, state: Any) -> None:
        """Raise StateMismatchError if more seeds were spawned than in the checkpoint: that cannot be undone."""
        now, spawned = spawned_of(self._generator), state.get("spawned", 0) if isinstance(state, dict) else 0
        if now > spawned:
            raise StateMismatchError(
                f"the {type(self._generator).__name__} has spawned {now} times, and in the checkpoint "
                f"{spawned} times, which cannot be undone. Nothing was changed. Make it anew before the restore"
            )

    def load_state_dict(self, state: Any) -> None:
        restore_generator(self._generator, state)


class ParameterHolder:
    """Stores the parameters, buffers and plain attributes of an object given by name, as a stateful object."""

    def __init__(self, name: str, owner: Any) -> None:
        self._name = name
        self._owner = owner

    def tensors(self) -> dict[str, ms.Tensor]:
        return {path: place.value for path, place in self.places().items() if place.put is None}

    def state_dict(self) -> dict[str, Any]:
        """Return, by place, a parameter's dtype and bits, which may be live memory, or a packed value."""
        return {path: place.packed for path, place in self.places().items()}

    def check(self, state: Any) -> None:
        """Raise StateMismatchError, naming each, if the parameters are not those of a checkpoint."""
        stored, now = state if isinstance(state, dict) else {}, self.places()
        saved = {path: packed for path, packed in stored.items() if packed[0] in DTYPES}
        mine = {path: place.packed for path, place in now.items() if place.put is None}
        lost = {path for path in stored.keys() - saved.keys() - now.keys() if self._late(path) is None}
        problems = [f"missing in the checkpoint: {path}" for path in sorted(mine.keys() - saved.keys())]
        problems += [f"not in this object: {path}" for path in sorted((saved.keys() - mine.keys()) | lost)]
        for path in sorted(mine.keys() & saved.keys()):
            (dtype, array), (my_dtype, my_array) = saved[path], mine[path]
            if (dtype, array.shape) != (my_dtype, my_array.shape):
                problems.append(
                    f"{path}: the checkpoint has {dtype} {list(array.shape)}, "
                    f"this object has {my_dtype} {list(my_array.shape)}"
                )
        if problems:
            raise StateMismatchError(
                f"the checkpoint does not fit the stateful object {self._name}. Nothing was changed. Build it as it "
                f"was, or start under another root:{listed(problems)}"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        now = self.places()
        taken = []
        for path, packed in state.items():
            if packed[0] in DTYPES:
                assign(now[path].value, packed[1], packed[0])
                continue
            value, put = _unpacked(packed), now[path].put if path in now else self._late(path)
            if put is not None and (path not in now or digest_of_value(now[path].packed) != digest_of_value(packed)):
                held = now[path].value if path in now else None
                # Others may hold it, and a deque has a largest length.
                is_filled = type(held) is type(value) and isinstance(held, (list, dict, deque))
                put(refilled(held, value) if is_filled else value)
                taken.append(f"{path} = {in_words(value)}")
        if taken:
            _log.info("%s continues with %s from the checkpoint", self._name, some(taken))

    def _late(self, path: str) -> _Put | None:
        """Return what sets an attribute that the stored object had and this one does not have yet."""
        if "/" in path or not is_of_users(self._owner):
            return None
        return partial(setattr, self._owner, path.removeprefix("."))

    def places(self) -> dict[str, _Place]:
        """Return what is stored of the object, by its place in it; looked up each time."""
        if not isinstance(self._owner, NamedAttributes):
            return dict(_places(self._owner, "", None, plain=True))
        owner = self._owner.owner
        places: dict[str, _Place] = {}
        for name in self._owner.names:
            _refuse_other_kinds(owner, name)
            places.update(_places(getattr(owner, name), name, partial(setattr, owner, name), plain=True))
        return places


class NamedCell(ParameterHolder):
    """Stores a train cell, and what a loop switches in its network, as a stateful object."""

    def __init__(self, name: str, cell: AccumulationTrainCell, *, may_change_k: bool) -> None:
        super().__init__(name, cell)
        self.cell = cell
        self.switches = Switches([cell], list(cell.network.get_parameters()), name)
        self._may_change_k = may_change_k
        self._counting = OwnCounting(cell, may_change_k=may_change_k)

    def state_dict(self) -> dict[str, Any]:
        counters, parameters = self.cell.counters, super().state_dict()
        self._counting.prove(counters, {name: packed[1] for name, packed in parameters.items()})
        return {
            "parameters": parameters,
            "counters": asdict(counters),
            "global_step_at_start": self._counting.base,
            "accumulation": accumulation_of(self.cell),
            "switches": self.switches.record(),
        }

    def check(self, state: Any) -> None:
        known = isinstance(state, dict) and state.keys() >= {"parameters", "counters", "accumulation"}
        super().check(state["parameters"] if known else None)
        stored = f"the train cell {self._name} of the checkpoint"
        check_same_training(stored, state["accumulation"], accumulation_of(self.cell))
        counters, schedule = CycleCounters(**state["counters"]), self.cell.schedule
        check_cycle(stored, counters, state["accumulation"], schedule, may_change=self._may_change_k)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; a changed K applies from the next boundary on, which may be the current position."""
        super().load_state_dict(state["parameters"])
        counters = CycleCounters(**state["counters"])
        if not counters.micro_step:
            counters = replace(counters, accumulation_steps=self.cell.schedule.at(counters.updates))
        self.cell.load_counters(counters)
        self._counting.base = state["global_step_at_start"]
        self.switches.load(state.get("switches"), counters.micro_steps)


def stateful_of(name: str, given: Any, *, may_change_k: bool = False) -> Stateful:
    """Return what stores the object given as ``name``; TypeError if nothing does."""
    if isinstance(given, AccumulationTrainCell):
        return NamedCell(name, given, may_change_k=may_change_k)
    if generator_state(given) is not None:
        return GeneratorHolder(given)
    # nn.Cell has both methods, but they take and return parameters, which a section cannot store.
    inherited = isinstance(given, nn.Cell) and type(given).state_dict is nn.Cell.state_dict
    with contextlib.suppress(AttributeError, LookupError):  # ``__getattr__ = dict.__getitem__`` raises KeyError
        # On the instance: it may delegate the methods to another object.
        if (
            not inherited
            and not isinstance(given, type)
            and callable(given.state_dict)
            and callable(given.load_state_dict)
        ):
            return cast(Stateful, given)
    holder = ParameterHolder(name, given)
    if not isinstance(given, NamedAttributes) and not holder.tensors():
        raise TypeError(
            f"{name}: a {type(given).__name__} has no state_dict() and load_state_dict(), and no parameters outside of "
            "cells. Give it the two methods, name the attributes to store: "
            f'{name}=ckptkit.attributes(it, "NAME", ...), or give a cell by a name of its own'
        )
    return holder


def _places(
    value: Any, path: str, put: _Put | None, *, plain: bool, above: tuple[int, ...] = ()
) -> Iterator[tuple[str, _Place]]:
    """Yield what is stored of ``value``, by its place; ``plain`` says whether to store values besides parameters."""
    if isinstance(value, ms.Parameter):
        yield path or "value", _Place(value, None)
    elif plain and put is not None and _is_storable(value):
        yield path, _Place(value, put)
    elif len(above) < _MAX_DEPTH and id(value) not in above:
        if isinstance(value, nn.Cell):
            if path:
                return  # a cell inside an object (a scheduler's optimizer) is state of the training's cells
            parameters = {parameter.name: parameter for parameter in all_of(value)}
            tensors = {**parameters, **CellBuffers([value], parameters).now()}
            yield from ((name, _Place(tensor, None)) for name, tensor in tensors.items())
        plain = plain and (isinstance(value, _CONTAINERS) or is_of_users(value))
        for key, item, put_item in _children(value, put):
            there = f"{path}/{key}" if path else str(key)
            yield from _places(item, there, put_item, plain=plain, above=(*above, id(value)))


def _children(value: Any, put: _Put | None) -> Iterator[tuple[Any, Any, _Put | None]]:
    """Yield items or attributes, each with the function that replaces it, or None; ``put`` replaces ``value``."""
    if isinstance(value, Mapping):
        for index, (key, item) in enumerate(value.items()):
            # The type is asked first: a save walks through all items, and most of them have numbers for keys.
            has_address = not isinstance(key, int) and _ADDRESS.search(str(key))
            yield f"#{index}" if has_address else key, item, partial(setitem, value, key)
    elif isinstance(value, (list, deque)):
        yield from ((index, item, partial(setitem, value, index)) for index, item in enumerate(value))
    elif isinstance(value, tuple):
        replace = partial(_put_into_tuple, value, [*value], put) if put is not None else None
        yield from ((index, item, replace and partial(replace, index)) for index, item in enumerate(value))
    elif isinstance(value, nn.Cell):
        bare = EVERY_CELL if is_of_users(value) else vars(value).keys()
        own = ((name, item) for name, item in attributes_of(value) if name not in bare)
        yield from ((f".{name}", item, partial(setattr, value, name)) for name, item in own)
    elif not isinstance(value, (type, ms.Tensor, ModuleType, FunctionType, MethodType)):
        yield from ((name, item, partial(setattr, value, name)) for name, item in attributes_of(value))


def _put_into_tuple(given: Any, items: list[Any], put: _Put, index: int, item: Any) -> None:
    """Replace a tuple by one with another item; ``items`` are its own, with those that were replaced before."""
    items[index] = item
    put(type(given)._make(items) if hasattr(given, "_make") else tuple(items))


def _refuse_other_kinds(owner: Any, name: str) -> None:
    value = getattr(owner, name)
    if not _fits(value):
        raise TypeError(
            f"ckptkit.attributes: {type(owner).__name__}.{name} is a {type(value).__name__}; only numbers, texts, "
            "arrays, tensors, parameters and lists, tuples and dicts of them can be stored. Give an object or a cell "
            "by a name of its own"
        )


def _fits(value: Any, inside: tuple[int, ...] = ()) -> bool:
    """Return whether all of ``value`` can be stored: values, and parameters in containers, ``inside`` of these."""
    if isinstance(value, ms.Parameter) or _is_storable(value):
        return True
    if not isinstance(value, (dict, list, tuple)) or id(value) in inside:
        return False
    items: Collection[Any] = value.values() if isinstance(value, dict) else value
    return all(_fits(item, (*inside, id(value))) for item in items)


def _encodes(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        encode_tree(value, "", [])
        return True
    return False


def _bits(tensor: ms.Tensor) -> list[Any]:
    leaf = leaf_of("", tensor.asnumpy(), role="state")
    return [leaf.dtype, leaf.array]


def _is_storable(value: Any) -> bool:
    return _packed(value, read=lambda tensor: tensor) is not None  # reading a tensor of a device copies it


def _packed(value: Any, inside: tuple[int, ...] = (), *, read: Callable[[ms.Tensor], Any] = _bits) -> list[Any] | None:
    """Return ``value`` in the form that `ckptkit.core.state_encoding` stores, which `_unpacked` reverses.

    None if it has parameters, or is not stored whole; ``inside`` as for `_fits`.
    """
    if isinstance(value, ms.Tensor):
        return None if isinstance(value, ms.Parameter) or value.has_init else ["tensor", read(value)]
    if _encodes(value):
        return ["plain", value]
    is_dict = isinstance(value, dict)
    if type(value) not in _PACKED or id(value) in inside or (is_dict and not _encodes(dict.fromkeys(value))):
        return None
    items: list[Any] = []
    for key, item in value.items() if is_dict else enumerate(value):
        packed = _packed(item, (*inside, id(value)), read=read)
        if packed is None:
            return None
        items.append([key, packed] if is_dict else packed)
    return [type(value).__name__, [value.maxlen, items] if isinstance(value, deque) else items]


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
    items = {key: _unpacked(item) for key, item in held}
    return defaultdict(None, items) if kind == "defaultdict" else _DICTS[kind](items)


def state_of(stateful: Stateful) -> Any:
    """Return the ``state_dict()`` of an object; generators of the process from which it draws are set back.

    They are left alone for ckptkit's own objects, which draw nothing: a thread of the data may draw at the same time.
    """
    return state_and_draws(stateful)[0] if is_of_users(stateful) else stateful.state_dict()


def state_and_draws(stateful: Stateful) -> tuple[Any, bool]:
    """Return the same, and whether the object drew random numbers."""
    before = capture_rng()
    state = stateful.state_dict()
    draws = digest_of_value(before) != digest_of_value(capture_rng())
    if draws:
        restore_rng(before)
    return state, draws


def load_checked(name: str, stateful: Stateful, state: Any) -> str | None:
    """Call ``load_state_dict``, and return what to say if not all was taken; ResumeError if nothing was."""
    takes_later = isinstance(stateful, (Iterable, Callback))
    given, before = digests_by_place(state), {} if takes_later else digests_by_place(stateful.state_dict())
    stateful.load_state_dict(state)
    after, once_more = digests_by_place(stateful.state_dict()), digests_by_place(stateful.state_dict())
    steady = {place for place in given.keys() | after.keys() if after.get(place) == once_more.get(place)}
    lost = sorted(place for place in steady if after.get(place) != given.get(place))
    if not lost:
        return None
    if not takes_later and all(after.get(place) == before.get(place) for place in steady | before.keys()):
        raise ResumeError(
            f"load_state_dict() of {name} ({type(stateful).__name__}) changed nothing: its state_dict() is still the "
            f"one before, not the stored one ({some(lost)}). Make it load its state, then start again: the checkpoint "
            "has the state"
        )
    return (
        f"After load_state_dict(), state_dict() of {name} ({type(stateful).__name__}) is not what was stored: "
        f"{some(lost)}. This is correct if the object loads it later, or should keep the values of this process"
    )
