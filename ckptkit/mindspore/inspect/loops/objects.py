"""Knows which objects checkpoints hold, and the expressions by which code names all others.

Guarantees: keeps the objects that it knows alive, so that no id is reused; calls no function of the user's. Python may
ask objects of the user's for ``__class__`` or ``__eq__``, and passes on what they raise. Main thread only.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import threading
import types
from collections import UserDict, UserList, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, OneOf, attribute, in_class, is_symbol, kept_in, own_attributes
from ckptkit.mindspore.inspect.carried_attributes import BARE, GENERATORS, read_by_construct
from ckptkit.mindspore.inspect.loops.containers import FEW, contents, items_of
from ckptkit.mindspore.inspect.loops.effects import is_ours
from ckptkit.mindspore.inspect.loops.scope import DATA, RESTORED, Place, Scope, Sources, Value
from ckptkit.mindspore.inspect.loops.source import text_of
from ckptkit.mindspore.inspect.loops.stand_ins import StandIns
from ckptkit.mindspore.inspect.sequential import cells_of
from ckptkit.mindspore.inspect.users import is_of_users, is_users

_NAMESPACES = OneOf(types.SimpleNamespace, threading.local, argparse.Namespace)
ITEMS = "its items"
LAYERS = "its layers, hooks or types"  # what makes a cell
_STORED = ("param_groups",)  # of optimizers, by `ckptkit.mindspore.state.switches`
_CODE = (types.ModuleType, types.MethodType)
_CONTAINERS = (list, dict, set, deque, np.ndarray)
_NO_ATTRIBUTES = (ms.Tensor, ds.Dataset, *_CODE)
_NO_STATE = (nn.Cell, ms.Parameter, ds.Dataset, *_CODE, types.FunctionType, type)


def place_in(owner: Any, name: str) -> Place:
    """Return the place of an attribute; of a module, that of the variable."""
    return Place(id(vars(owner)) if isinstance(owner, types.ModuleType) else id(owner), name)


def arguments_of_callbacks(cells: Sequence[nn.Cell]) -> types.SimpleNamespace:
    """Return what stands for the arguments that MindSpore gives to callbacks: a dict with attributes.

    Args:
        cells: What is trained, the train network first.
    """
    network = cells[0] if cells else UNKNOWN
    optimizer = (own_attributes(network).get("_cells") or {}).get("optimizer", UNKNOWN)
    return types.SimpleNamespace(train_network=network, network=network, optimizer=optimizer)


def is_arguments(one: Any) -> bool:
    """Return whether the object is one that `arguments_of_callbacks` made; users have none of it to give by name."""
    return type(one) is types.SimpleNamespace and "train_network" in own_attributes(one)


def decides(value: Value) -> Sources:
    """Return the sources that decide which object a value is; checkpoints tell what a cell holds, not which it is."""
    is_cell = isinstance(value.target, nn.Cell) and not value.also
    return value.sources - {RESTORED} if is_cell else value.sources


def of_owner(owner: Value) -> Sources:
    """Return what an attribute of ``owner`` is made of: checkpoints hold a cell's parameters, but no attributes."""
    return owner.sources - {RESTORED} if _is_plain_cell(owner.target) else owner.sources


def _is_plain_cell(one: Any) -> bool:
    return issubclass(type(one), nn.Cell) and not is_ours(one)


def is_trained(one: Any) -> bool:
    """Return whether training changes it: a parameter, or a cell that has one."""
    parameters = nn.Cell.get_parameters(one) if isinstance(one, nn.Cell) else [one]
    return any(isinstance(each, ms.Parameter) and each.requires_grad for each in parameters)


class Stored(NamedTuple):
    """Names the attributes of an object that checkpoints hold; they do not hold the others."""

    owner: Any
    names: frozenset[str]


class Objects:
    """Records the objects and places that are met while code is read.

    Args:
        known: Objects that checkpoints hold by name, and the data that they position; their contents are known too. Of
            `Stored` ones, some attributes.
        told: Objects whose contents, except for cells, are reported elsewhere.
        read_by_cells: Places outside of cells that the code of cells may read.
        cells: What is trained, or given by name.

    Attributes:
        read_by_cells: Places outside of cells that the code of cells may read.
        in_place: The expressions of the objects that loops change in place, by id.
        stand_ins: Objects for those that do not exist yet.
    """

    def __init__(
        self,
        known: Iterable[Any],
        told: Iterable[Any] = (),
        read_by_cells: Collection[Place] = frozenset(),
        cells: Iterable[nn.Cell] = (),
    ) -> None:
        known = [*known]
        self._stored = {id(one.owner): one for one in known if isinstance(one, Stored)}
        parts = [attribute(one.owner, name) for one in self._stored.values() for name in one.names]
        whole = [*(one for one in known if not isinstance(one, Stored)), *parts]
        self._known = {at: one for at, one in contents(told).items() if not isinstance(one, nn.Cell)} | contents(whole)
        self._cells = [*cells]
        self._parameters = [one for one in whole if isinstance(one, ms.Parameter)]
        for at in self._stored:  # what holds the object does not store the rest of it
            self._known.pop(at, None)
        self._places: dict[Place, tuple[str, Any]] = {}  # the expression, and the object there
        self._objects: dict[int | str, tuple[str, Any]] = {}  # by id
        self.stand_ins = StandIns()
        self._named_calls: dict[ast.Call, str] = {}
        self._rebound: set[Place] = set()  # that get another function or cell
        self.read_by_cells = read_by_cells
        self._attributes_read: dict[Place, None] = {}  # attributes of cells that the code changes and `construct` reads
        self._positioned: set[tuple[Place, str]] = set()  # expressions, by the variable that they begin with
        self.in_place: dict[int, str] = {}
        self._unplaced: set[int] = set()  # of those, containers that are reached by none of the places
        self._changed_by: dict[int, set[Place]] = {}  # the places by which loops change an object

    def is_known(self, one: Any) -> bool:
        """Return whether checkpoints hold or position the object."""
        return id(one) in self._known

    def is_named(self, one: Any) -> bool:
        """Return whether checkpoints hold the object, or some of its attributes."""
        return self.is_known(one) or id(one) in self._stored

    def is_in_cells(self, one: Any) -> bool:
        """Return whether it is a trained or named cell or parameter, or in such a cell."""
        return isinstance(one, (nn.Cell, ms.Parameter)) and id(one) in self._in_cells

    @functools.cached_property
    def _in_cells(self) -> frozenset[int]:
        cells = (each.cell for cell in self._cells for each in cells_of(cell))
        parameters = (each for cell in self._cells for each in nn.Cell.get_parameters(cell))
        return frozenset(map(id, itertools.chain(cells, parameters, self._parameters)))

    def stores(self, owner: Any, name: str) -> bool:
        """Return whether checkpoints hold this attribute of the object."""
        if (part := self._stored.get(id(owner))) is not None and name in part.names:
            return True
        if _is_plain_cell(owner):
            return name in (own_attributes(owner).get("_buffers") or {})
        kind = self.class_with(owner, name) if self.is_known(owner) else None  # what its class holds is the class's
        return self.is_known(owner) and (kind is None or not isinstance(in_class(kind, name), _CONTAINERS))

    def is_plain(self, one: Any) -> bool:
        """Return whether ``one`` is an object whose plain attributes no checkpoint holds: the user's, or any cell."""
        if isinstance(one, types.ModuleType):
            return is_users(vars(one).get("__name__"))
        if one is UNKNOWN or isinstance(one, _NO_ATTRIBUTES) or self.is_known(one):
            return False
        home = one if isinstance(one, (type, types.FunctionType)) else type(one)  # these have attributes, too
        if issubclass(type(one), nn.Cell):
            return True
        return home in _NAMESPACES or is_users(getattr(home, "__module__", "builtins"))

    def is_of_library(self, one: Any) -> bool:
        """Return whether ``one`` is an object of a library's that no checkpoint holds, such as a number of `ctypes`."""
        is_other = not is_symbol(one) and not isinstance(one, _NO_STATE)
        return is_other and not self.is_known(one) and not self.is_plain(one)

    def position(self, part: ast.expr, sources: Sources, scope: Scope) -> None:
        """Record that what ``part`` is an attribute or method of is set to a position, if ``sources`` are one."""
        while RESTORED in sources and DATA not in sources and isinstance(part, (ast.Attribute, ast.Subscript)):
            part = part.value
            self._positioned.update(_expressions(part, scope))

    def skip(self, loop: ast.For | ast.AsyncFor, scope: Scope) -> None:
        """Record that ``loop``, which runs as often as batches are done, takes those from its iterators."""
        calls = [one for each in loop.body for one in ast.walk(each) if isinstance(one, ast.Call) and one.args]
        for one in calls:
            if isinstance(one.func, ast.Name) and one.func.id == "next":
                self._positioned.update(_expressions(one.args[0], scope))

    def is_positioned(self, over: ast.expr, scope: Scope) -> bool:
        """Return whether a loop over ``over`` begins where `position` or `skip` left it."""
        if isinstance(over, ast.Call):
            return any(self.is_positioned(one, scope) for one in over.args)
        return not self._positioned.isdisjoint(_expressions(over, scope))

    def name_call(self, node: ast.Call, path: str) -> None:
        """Record the expression of the variable that gets the result of a call."""
        self._named_calls[node] = path

    def stand_in(self, node: ast.Call, kind: type, path: str) -> Any:
        """Return an object for the one that a call of the user's class will make; `UNKNOWN` for other classes."""
        made = self.stand_ins.of(node, kind)
        if made is not UNKNOWN:
            self.path_of(made, self._named_calls.get(node, path))
        return made

    def note(self, path: str, one: Any, place: Place) -> None:
        """Record the expression for a place and its object, unless one is recorded already."""
        self._places.setdefault(place, (path, one))
        if id(one) in self._objects:
            return
        if self.is_plain(one) or isinstance(one, (*GENERATORS, Iterator)):
            self.path_of(one, path)

    def rebind(self, place: Place, value: Value) -> None:
        """Record that an object is assigned to a place; whether it is another one than before may be unknown."""
        before, found = self.at(place), [one for one in (value.target, *value.also) if not is_symbol(one)]
        if before is UNKNOWN:
            is_other = isinstance(value.target, nn.Cell)
        else:
            # A method may return a successor of the object that checkpoints hold, and the loop go on with that one.
            is_unknown = not found and self.is_named(before) and is_of_users(before)
            is_other = value.is_new or is_unknown or not all(_is_same(before, one) for one in found)
        if is_other:
            self._rebound.add(place)

    def is_rebound(self, place: Place) -> bool:
        """Return whether code assigns another function or cell to the place, which is not a plain value."""
        return place in self._rebound

    def path_of(self, one: Any, path: str) -> str:
        """Return the object's expression: the first one recorded, otherwise ``path``."""
        return self._objects.setdefault(id(one), (path, one))[0]

    def has(self, owner: Any, name: str) -> bool:
        """Return whether ``owner`` is plain, and the attribute of that name is not what every cell has, or a buffer."""
        if isinstance(owner, ms.Parameter):  # users keep values beside its own
            return name not in dir(type(owner)) and name not in _of_parameters()
        if self.stores(owner, name) or not (self.is_plain(owner) or self.is_known(owner)):
            return False
        return not isinstance(owner, nn.Cell) or name not in (*BARE, *(owner._buffers or ()), *_STORED)

    def changed(self, owner: Any, place: Place) -> None:
        """Record a change of an attribute; in PYNATIVE mode, calls of its cell read it."""
        is_run = isinstance(owner, nn.Cell) and ms.get_context("mode") == ms.PYNATIVE_MODE
        if is_run and place.name in read_by_construct(type(owner)):
            self._attributes_read[place] = None

    def reworks(self, owner: nn.Cell, path: str) -> Place:
        """Record that a cell gets another cell in place of one of its own, a hook or another type; return the place."""
        place = Place(id(owner), LAYERS)
        self.path_of(owner, path)
        self._places.setdefault(place, (path, UNKNOWN))
        self._attributes_read[place] = None
        return place

    def read_by(self, called: Any, changed: Iterable[Place]) -> list[Place]:
        """Return the ``changed`` places that a call of a cell reads; of a function, which cells it calls is unknown."""
        found = [place for place in changed if place in self.read_by_cells]
        if not self._attributes_read or not isinstance(called, nn.Cell):
            return [*found, *self._attributes_read]
        cells = {id(one.cell) for one in cells_of(called)}
        return [*found, *(place for place in self._attributes_read if place.within in cells)]

    def class_with(self, owner: Any, name: str) -> type | None:
        """Return the class of the user's from which an object has the attribute; None if it has one of its own."""
        if isinstance(owner, type) or name in own_attributes(owner):
            return None
        kinds = (one for one in type(owner).__mro__ if name in vars(one))
        return next((one for one in kinds if is_users(one.__module__)), None)

    def written(self, writes: Iterable[Place], taken: Iterable[int]) -> set[Place]:
        """Return the places in ``writes`` that are in existing objects, and the contents of objects changed in place.

        Args:
            writes: Places.
            taken: The ids of iterators and generators from which the code takes.
        """
        stand_ins = self.stand_ins.ids()
        changed = (at for at in self.in_place if at not in self._unplaced)
        places = {*writes, *(Place(at, ITEMS) for at in (*changed, *taken))}
        return {place for place in places if place.within not in stand_ins}

    def contents(self, owner: Any, path: str) -> Place | None:
        """Return the place of what an object of the user's holds as a list, a set or a dict; None if it is none."""
        if not isinstance(owner, (list, dict, set, deque, UserDict, UserList)) or not self.is_plain(owner):
            return None
        if in_class(type(owner), "__getattr__") is not UNKNOWN:
            return None  # its items are its attributes
        place = Place(id(owner), ITEMS)
        self.note(self.path_of(owner, path), UNKNOWN, place)
        return place

    def change(self, value: Value, path: str) -> Place | None:
        """Record that a loop changes an object in place; return the place of its items if it is a container."""
        if value.target is UNKNOWN:
            return None
        one = _whole(value.target)
        self.in_place.setdefault(id(one), path)
        if not _is_aliased(one):
            return None
        if value.place is None:
            self._unplaced.add(id(one))
            return None
        self._changed_by.setdefault(id(one), set()).add(value.place)
        place = Place(id(one), ITEMS)
        self.note(path, one, place)
        return place

    def changed_elsewhere(self, one: Any, place: Place | None) -> list[Place]:
        """Return the places of the items of an object, and of those in it, that are changed by other names."""
        inner = [one, *(items_of(one, FEW) if isinstance(one, _CONTAINERS) and not isinstance(one, np.ndarray) else ())]
        found = [_whole(each) for each in inner if _is_aliased(each)]
        return [Place(id(each), ITEMS) for each in found if place not in self._changed_by.get(id(each), {place})]

    def attribute_of(self, owner: Any, path: str, name: str) -> Place:
        """Return the place of an attribute; the object's expression is ``path`` unless one is recorded already."""
        place = place_in(owner, name)
        self.note(f"{self.path_of(owner, path)}.{name}", kept_in(owner, name), place)
        return place

    def holder(self, place: Place) -> tuple[str, str] | None:
        """Return the expression and type name of the object that holds the place; None if the place has no state.

        A variable is its own holder, with an empty type name.
        """
        path, one = self._places[place]
        if place not in self._rebound and (isinstance(one, _NO_STATE) or self.is_named(one)):
            return None
        if place.within in self._objects:
            path, owner = self._objects[place.within]
            return path, "" if is_arguments(owner) else type(owner).__name__
        return path, ""

    def owner(self, place: Place) -> Any:
        """Return the object of which the place is an attribute or the contents; `UNKNOWN` of a variable."""
        return self._objects.get(place.within, ("", UNKNOWN))[1]

    def places_of(self, one: Any) -> list[Place]:
        """Return the places at which the object was met."""
        return [place for place, (_, each) in self._places.items() if each is one]

    def met_like(self, one: Any) -> list[tuple[Place, Any]]:
        """Return the other objects of the same library that were met, each with its place."""
        home = type(one).__module__
        pairs = [(place, each) for place, (_, each) in [*self._places.items()] if each is not one]
        return [pair for pair in pairs if type(pair[1]).__module__ == home]

    def at(self, place: Place) -> Any:
        """Return the object at a place; `UNKNOWN` if none was recorded."""
        return self._places.get(place, ("", UNKNOWN))[1]

    def expression(self, place: Place) -> str:
        """Return the expression for a place; empty if none was recorded."""
        return self._places.get(place, ("", UNKNOWN))[0]


@functools.cache
def _of_parameters() -> frozenset[str]:
    """Return the attributes that MindSpore gives a parameter."""
    return frozenset(vars(ms.Parameter(np.zeros(1, np.float32))))


def _whole(one: Any) -> Any:
    """Return the array that a view is a part of; any other object as it is."""
    while isinstance(one, np.ndarray) and isinstance(one.base, np.ndarray):
        one = one.base
    return one


def _is_aliased(one: Any) -> bool:
    """Return whether what changes in the object by one name is seen by another."""
    return isinstance(one, _CONTAINERS) or (isinstance(one, ms.Tensor) and not isinstance(one, ms.Parameter))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether both are one object, or one method of one object, since each access makes a new bound method."""
    if type(one) is types.MethodType and type(other) is types.MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return one is other


def _expressions(one: ast.expr, scope: Scope) -> Iterator[tuple[Place, str]]:
    """Yield the expression with the place of the variable that it begins with; nothing if it begins otherwise."""
    root = one
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if isinstance(root, ast.Name):
        yield scope.place(root.id), text_of(one)
