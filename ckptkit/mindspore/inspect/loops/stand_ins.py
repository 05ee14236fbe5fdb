"""Makes objects that stand for those which code will make, so that their attributes and methods can be followed.

Guarantees: runs no code of the user's, not even to end such an object; keeps all of them alive. Main thread only.
"""

from __future__ import annotations

import abc
import ast
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, OneOf, Symbol, in_class, own_attributes
from ckptkit.mindspore.inspect.loops.scope import FUNCTIONS, CachePlace, Place, Trains, Value

_KINDS = OneOf(type, abc.ABCMeta)  # classes of others may run code when an object is made
_MAKERS = (object, list, dict, set, deque)


class StandIns:
    """Holds one object for each call of a class of the user's."""

    def __init__(self) -> None:
        self._by_call: dict[ast.Call, Any] = {}
        self._held: dict[Place, dict[ast.expr, Any]] = {}  # functions and optimizers, by what they are assigned to
        self._late: set[Place] = set()  # get something when it is needed

    def hold(self, places: Iterable[Place], target: ast.expr, value: Value) -> None:
        """Record that code assigns a new function or optimizer to an attribute, or to an item of what is at a place."""
        is_part = isinstance(target, (ast.Attribute, ast.Subscript))
        if is_part and isinstance(value.target, (*FUNCTIONS, Trains)):
            self._put(places, target, value)

    def fill(self, places: Collection[Place], target: ast.expr, value: Value) -> None:
        """Record that what code makes is assigned where nothing lies yet."""
        self._late |= {*places}
        if isinstance(value.target, Trains):
            self._put(places, target, value)

    def _put(self, places: Iterable[Place], target: ast.expr, value: Value) -> None:
        for place in places:
            self._held.setdefault(place, {})[target] = value.target

    def is_filled(self, place: Place | None) -> bool:
        """Return whether code puts something there, also beside what lies there."""
        return place in self._late or place in self._held

    def with_held(self, value: Value, *, is_variable: bool = False) -> Value:
        """Return what was read from a place, with what code makes and puts there if nothing lies there yet."""
        place = value.place
        if place is None or not (value.target is UNKNOWN or value.target is None):
            return value
        if place in self._late:  # it lasts like what a cache keeps
            value = value._replace(target=UNKNOWN, place=CachePlace(*place))
        elif is_variable:  # its scope knows the functions
            return value
        found = [*self._held.get(place, {}).values()]
        return value._replace(target=found[0], also=tuple(found[1:])) if found else value

    def of(self, node: ast.Call, kind: type) -> Any:
        """Return the object for what a call of a class will make; `UNKNOWN` if none can be made without its code."""
        if node not in self._by_call:
            maker = next((one for one in _MAKERS if in_class(kind, "__new__") is vars(one).get("__new__")), None)
            is_simple = (
                type(kind) in _KINDS and not issubclass(kind, nn.Cell) and not vars(kind).get("__abstractmethods__")
            )
            if maker is None or not is_simple or in_class(kind, "__del__") is not UNKNOWN:
                return UNKNOWN
            self._by_call[node] = maker.__new__(kind)
        return self._by_call[node]

    def generator(self, node: ast.Call, maker: Callable[[], Any]) -> Any:
        """Return a generator for the one that a call of ``maker`` will make; what it draws is not used."""
        if node not in self._by_call:
            self._by_call[node] = maker()
        return self._by_call[node]

    def has(self, one: Any) -> bool:
        """Return whether the object stands for one that does not exist yet."""
        return isinstance(one, Symbol) or any(one is each for each in self._by_call.values())

    def give(self, owner: Any, name: str, value: Any) -> None:
        """Give an object that stands for another one an attribute; leave all other objects as they are."""
        own = own_attributes(owner) if self.has(owner) and not isinstance(owner, Symbol) else None
        if isinstance(own, dict) and value is not UNKNOWN:
            own[name] = value

    def methods(self, name: str) -> list[Any]:
        """Return the methods of that name: any of them may run where it is not known which object has it."""
        found = ((one, in_class(type(one), name)) for one in self._by_call.values())
        return [types.MethodType(method, one) for one, method in found if type(method) is types.FunctionType]

    def ids(self) -> set[int]:
        """Return the ids of all of them."""
        return {id(one) for one in self._by_call.values()}
