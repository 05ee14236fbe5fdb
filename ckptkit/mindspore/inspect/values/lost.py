"""Finds state of an object that its ``state_dict()`` and ``load_state_dict()`` do not bring back.

Each attribute is changed in a copy of the object, by a little and by much. If ``state_dict()`` of the copy is as it
was, the change is left out, rounded, or overwritten. If another copy that loads this state has another value there, it
is not brought back. Guarantees: the object itself, and what it holds, is not changed; of the user's code, only what
`Loading` knows runs, and only for copies. Objects with more than `_MOST_WORK` allows are not tried, or in part. What
raises for a copy is not judged. Main thread only.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attribute_uses import carried_by, named_by, only_shown, set_by
from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class
from ckptkit.mindspore.inspect.carried_attributes import GENERATORS
from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.users import is_of_users, is_users
from ckptkit.mindspore.inspect.values.copies import (
    CODE,
    LARGE_BYTES,
    Place,
    change,
    follow,
    objects_in,
    places_in,
)
from ckptkit.mindspore.inspect.values.digest import arrays_in, digest_of_value, written
from ckptkit.mindspore.inspect.values.loads import Loading
from ckptkit.mindspore.inspect.values.variations import changed_a_little, changed_much, with_digits

_MOST_WORK = 20_000  # places, times what is in a copy
_MOST_OBJECTS, _MOST_OF_ONE = 200_000, 10_000  # to look for other ways to an object, in all and by one root
_LEADING_NOWHERE = (bool, bytes, complex, float, int, str, type(None))
_SET_BY_LOAD = ("load_state_dict", "__setstate__")
_CHANGEABLE = (list, dict, set, deque, np.ndarray, *GENERATORS)


def find_lost_state(
    objects: Iterable[tuple[str, Any]], read: Collection[int] = (), given: Iterable[Any] = ()
) -> Iterator[Finding]:
    """Yield the state of each object that a resume would not bring back.

    Args:
        objects: Given with their names.
        read: Ids of objects of whose own attributes those are found elsewhere that ``state_dict()`` leaves out.
        given: Objects that are stored by themselves: no other one has to store them, and what is in them.
    """
    inside = {id(one): objects_in(one) for one in given}
    for name, one in objects:
        if _has_state_of_its_own(one):
            stored = set[int]().union(*(ids for at, ids in inside.items() if at != id(one))) - {id(one)}
            found = _State(one, is_read=id(one) in read, stored=stored).lost()
            yield from (Finding("unseen", name, *each, certain=False) for each in found)


def find_remade_otherwise(objects: Iterable[tuple[str, Any]]) -> Iterator[Finding]:
    """Yield the values that ``load_state_dict()`` computes itself, and that would then differ from the present ones.

    An example is a limit that is taken from another object now and then, and by each load.

    Args:
        objects: Given with their names, as they are at a save.
    """
    for name, one in objects:
        if _has_state_of_its_own(one) and (places := _State(one, is_read=True).remade_otherwise()):
            why = f"{_names(places)}: load_state_dict() would make another value of this than it has at this save"
            yield Finding("unseen", name, why, "Store it in its state_dict(), and restore it as it was", certain=False)


def find_parted_objects(objects: Iterable[tuple[str, Any]], others: Collection[tuple[str, Any]]) -> Iterator[Finding]:
    """Yield the parts of each object that others hold too, and that a load would replace in the object alone.

    Args:
        objects: Given with their names.
        others: What else training uses, with names.
    """
    for name, one in objects:
        if _has_state_of_its_own(one):
            found = _State(one, is_read=True).parted([each for each in others if each[1] is not one])
            yield from (Finding("unseen", name, *each, certain=False) for each in found)


def _has_state_of_its_own(one: Any) -> bool:
    method = in_class(type(one), "state_dict")
    return isinstance(method, types.FunctionType) and is_users(method.__module__)


class _State:
    """Compares what copies of an object tell and load.

    Args:
        one: The object.
        is_read: Whether it is found elsewhere what ``state_dict()`` leaves out of its own attributes.
        stored: Ids of objects in it that are stored by themselves.
    """

    def __init__(self, one: Any, *, is_read: bool, stored: Collection[int] = ()) -> None:
        self._one = one
        self._is_read = is_read
        self._stored = stored
        self._loading = Loading(one)
        self._stuck: dict[str, str] = {}  # what loading sets for good, and by which attribute

    def lost(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong and what to do."""
        if not self._digest or self._digest != _digest(self._told()):  # unknown, or another one at each call
            return
        size = max(1, self._loading.size) + sum(array.nbytes for array in arrays_in(self._state)) // 64
        places = itertools.islice(places_in(self._one, self._stored), _MOST_WORK // size)
        shown = [(place, self._shown_of(place)) for place in places]
        rounded, left, forgotten = (
            [place for place, much in shown if much == wanted] for wanted in ("much", "nothing", "no longer")
        )
        left = [one for one in left if self._is_carried(one) and not self._is_told_elsewhere(one)]
        forgotten = [one for one in forgotten if self._is_carried(one, may_be_set=True)]
        if rounded:
            yield (
                f"its state_dict() does not have all digits of {_names(rounded)}",
                "Store them as they are, without rounding; round where you print them",
            )
        if left:
            yield (
                f"{_names(left)}: its code changes this, but its state_dict() stays the same",
                "Store it there, under a key of its own, and restore it",
            )
        if forgotten:
            yield (
                f"{_names(forgotten)}: after load_state_dict() of its own state_dict(), this is another value",
                "Store all of it, and restore it as it was",
            )
        for name, cause in self._stuck.items():
            yield (
                f"load_state_dict() sets {name} by {cause}, and no other code sets it back: what was not resumed keeps "
                "another value",
                f"Set {name} back once it was used",
            )

    def remade_otherwise(self) -> list[Place]:
        """Return the places of values that methods carry, and that a load would compute anew and change."""
        if self._again is UNKNOWN or self._digest != _digest(self._told()):
            return []
        kind: Any = type(self._one)
        names = self._set_by_load(kind) & carried_by(kind)
        places = itertools.islice(places_in(self._one, self._stored), _MOST_WORK)
        own = (one for one in places if one.holder is self._one and one.name in names)
        return [one for one in own if _comparable(follow(self._again, one.steps)) != _comparable(one.value)]

    def parted(self, others: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
        """Yield attributes whose object others hold too, and to which a load assigns another object."""
        if not self._loading.may_load:
            return
        attributes = [each for each in attributes_of(self._one) if isinstance(each[1], _CHANGEABLE)]
        attributes = [each for each in attributes if self._may_change(type(self._one), *each)]
        places = _places_of([value for _, value in attributes], others, self._one)
        for name, value in attributes:
            where = places.get(id(value))
            if where is not None and self._loading.loaded(self._state, name)[1]:
                yield (
                    f"load_state_dict() gives {name} another object, but {where} keeps the one that it has now",
                    f"Change it in place, such as self.{name}[:] = ..., or let {where} ask for it each time",
                )

    @functools.cached_property
    def _state(self) -> Any:
        """What a copy tells as it is."""
        return self._told() if self._loading.may_tell else UNKNOWN

    @functools.cached_property
    def _digest(self) -> str:
        return _digest(self._state)

    @functools.cached_property
    def _again(self) -> Any:
        """A copy that is resumed from the present state."""
        return self._loaded(self._state)

    def _told(self, place: Place | None = None, value: Any = None) -> Any:
        """Return the state of a copy, with another value at a place if one is given."""
        made = self._loading.copy()
        is_there = made is not UNKNOWN and (place is None or change(made, place, value))
        return self._loading.told(made) if is_there else UNKNOWN

    def _loaded(self, state: Any) -> Any:
        is_known = self._loading.may_load and state is not UNKNOWN
        return self._loading.loaded(state)[0] if is_known else UNKNOWN

    def _shown_of(self, place: Place) -> str:
        """Return how much of a change comes back.

        This is ``"all"``, only ``"much"`` of it, ``"nothing"``, or ``"no longer"`` if the state shows it and loading
        loses it.
        """
        kind: Any = type(place.holder)
        if isinstance(place.value, CODE) and place.name not in carried_by(kind):
            return "all"
        with np.errstate(all="ignore"):
            digits = with_digits(place.value)
            changes = ("all", digits, changed_a_little(digits)), ("much", place.value, changed_much(place.value))
        for amount, begun, other in changes:
            if other is UNKNOWN:
                return "all"
            before = self._digest if begun is place.value else _digest(self._told(place, begun))
            state = self._told(place, other)
            found = _digest(state)
            if not found or not before:
                return "all"  # the code does not take this value: nothing is known
            if found != before:
                return amount if amount == "much" or self._comes_back(place, other, state) else "no longer"
        return "nothing"

    def _comes_back(self, place: Place, value: Any, state: Any) -> bool:
        """Return whether a copy that loads a state has the changed value; notes what else that sets for good."""
        loaded = self._loaded(state)
        if loaded is UNKNOWN or self._again is UNKNOWN:
            return True
        self._note_stuck(place, loaded)
        found, again = (_comparable(follow(one, place.steps)) for one in (loaded, self._again))
        is_partly = found != again or place.name not in self._set_by_load(type(place.holder))
        return found == _comparable(value) or not is_partly

    def _note_stuck(self, place: Place, loaded: Any) -> None:
        """Note the numbers that a load has set, besides the one at the place, and that steps read but never set."""
        if place.holder is not self._one:
            return
        kind: Any = type(self._one)
        names = self._set_by_load(kind) & named_by(kind, in_steps=True) - carried_by(kind) - only_shown(kind)
        again = dict(attributes_of(self._again))
        for name, value in attributes_of(loaded):
            # A state that is kept for later is no number.
            is_other = type(value) in (int, float) and value != again.get(name, UNKNOWN)
            if is_other and name in names - {place.name}:
                self._stuck.setdefault(name, place.name)

    def _set_by_load(self, kind: Any) -> frozenset[str]:
        return frozenset[str]().union(*(set_by(one, name) for one in {kind, type(self._one)} for name in _SET_BY_LOAD))

    def _is_told_elsewhere(self, place: Place) -> bool:
        return self._is_read and place.holder is self._one and not isinstance(place.value, (*GENERATORS, *CODE))

    def _is_carried(self, place: Place, *, may_be_set: bool = False) -> bool:
        """Return whether methods carry the value from call to call, and no ``load_state_dict`` makes it anew."""
        kind: Any = type(place.holder)
        if not self._may_change(kind, place.name, place.value):
            return False
        if may_be_set or (place.holder is not self._one and _has_state_of_its_own(place.holder)):
            return True  # it is told, or stores and restores the value itself, and is not asked, or not heard
        return place.name not in self._set_by_load(kind)

    def _may_change(self, kind: Any, name: str, value: Any) -> bool:
        draws = isinstance(value, GENERATORS) and name in named_by(kind, in_steps=True) - only_shown(kind)
        return draws or name in carried_by(kind)


def _names(places: Sequence[Place]) -> str:
    return ", ".join(place.where for place in places)


def _digest(state: Any) -> str:
    return "" if state is UNKNOWN else digest_of_value(state)


def _comparable(value: Any) -> Any:  # noqa: PLR0911 - one return per kind reads as the table that it is
    """Return what is equal for values that a program takes for the same, such as a list and a tuple."""
    if isinstance(value, np.ndarray) and value.nbytes > LARGE_BYTES:
        return digest_of_value(value)
    if isinstance(value, np.ndarray | np.generic):
        return _comparable(value.tolist())
    if isinstance(value, (list, tuple, deque)):
        return [_comparable(one) for one in value]
    if isinstance(value, dict):
        items = [(_comparable(key), _comparable(one)) for key, one in value.items()]
        return items if isinstance(value, OrderedDict) else sorted(items, key=written)
    if isinstance(value, (set, frozenset)):
        return sorted(map(written, value))
    if isinstance(value, CODE):
        return getattr(value, "__qualname__", written(value))
    if isinstance(value, GENERATORS):
        return digest_of_value(value)
    return type(value).__name__ if is_of_users(value) else written(value)


def _places_of(wanted: Sequence[Any], roots: Iterable[tuple[str, Any]], owner: Any) -> dict[int, str]:
    """Return by id which root leads first to each wanted object without its owner.

    One walk finds them all: the variables of a large program lead to the same objects again and again.
    """
    missing, found = {id(one) for one in wanted}, dict[int, str]()
    seen, left = {id(owner)}, _MOST_OBJECTS
    for where, root in roots:
        waiting, own = deque([root]), set[int]()
        while waiting and missing and len(own) < min(left, _MOST_OF_ONE):
            each = waiting.popleft()
            if id(each) in missing:
                missing.remove(id(each))
                found[id(each)] = where
            if id(each) not in seen and id(each) not in own:
                own.add(id(each))
                waiting.extend(value for _, value in below(each) if type(value) not in _LEADING_NOWHERE)
        left -= len(own)
        if not waiting:  # else what it has met may lead to more than it has seen
            seen |= own
    return found
