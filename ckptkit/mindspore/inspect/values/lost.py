"""Finds state of an object that its ``state_dict()`` does not tell apart: what it leaves out, rounds, or overwrites.

Each attribute is changed in a copy of the object, by a little and by much; if ``state_dict()`` of the copy is as it
was, a resume cannot bring the change back. Guarantees: the object itself, and what it holds, is not changed; of the
user's code, only ``state_dict()`` runs, of the object and of copies. Does not copy objects with a ``__new__`` or a
``__del__`` of their own, cells, tensors, and those of libraries, nor look at more than `_MAX_PLACES` attributes, or
fewer of large states; what raises for a copy is not judged. Main thread only.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptkit.mindspore.inspect.attribute_uses import carried_by, set_by
from ckptkit.mindspore.inspect.attributes import UNKNOWN, attributes_of, in_class, is_users, own_attributes
from ckptkit.mindspore.inspect.finding import Finding
from ckptkit.mindspore.inspect.loops.source import stored_by
from ckptkit.mindspore.inspect.values.digest import arrays_in, digest_of_value, is_plain

_MAX_DEPTH = 4  # of objects in objects
_MAX_ITEMS = 16  # of one container
_MAX_PLACES = 200
_MAX_BYTES = 1 << 28  # of all states that are digested
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_SET_BY_LOAD = ("load_state_dict", "__setstate__")


@dataclass(frozen=True)
class _Place:
    """An attribute with a plain value.

    Attributes:
        where: Its path from the object.
        holder: The object that has it.
        name: Its name there.
        value: Its value.
        rebuilt: Returns a copy of the whole object with another value there.
    """

    where: str
    holder: Any
    name: str
    value: Any
    rebuilt: Callable[[Any], Any]

    @property
    def key(self) -> tuple[int, str]:
        """Tell it from others, but not from itself on another path."""
        return id(self.holder), self.name


def find_lost_state(objects: Iterable[tuple[str, Any]]) -> Iterator[Finding]:
    """Yield what a resume would not bring back of each object; ``objects`` are given with their names."""
    for name, one in objects:
        yield from (Finding("unseen", name, *each, certain=False) for each in _lost_of(one))


def _lost_of(one: Any) -> Iterator[tuple[str, str]]:
    if not _has_state_of_its_own(one):
        return
    state = _state_of(one)
    if not state or state != _state_of(one):  # unknown, or another one at each call
        return
    read = stored_by(one)  # what it leaves out of its own attributes is found by the code that changes them
    shown: dict[tuple[int, str], set[str]] = {}
    places: dict[tuple[int, str], _Place] = {}
    size_bytes = sum(array.nbytes for array in arrays_in(one.state_dict()))
    for place in itertools.islice(_places(one), min(_MAX_PLACES, _MAX_BYTES // max(1, size_bytes))):
        places.setdefault(place.key, place)
        shown.setdefault(place.key, set()).add(_shown(place, state))
    rounded = [place.where for key, place in places.items() if shown[key] == {"much"}]
    left = [place for key, place in places.items() if shown[key] == {"nothing"} and _is_carried(place, one)]
    left = [place for place in left if read is None or place.holder is not one]
    if rounded:
        yield (
            f"its state_dict() does not have all digits of {', '.join(rounded)}",
            "Store them as they are, without rounding; round where you print them",
        )
    if left:
        yield (
            f"{', '.join(place.where for place in left)}: its code changes this, but its state_dict() stays the same",
            "Store it there, under a key of its own, and restore it",
        )


def _has_state_of_its_own(one: Any) -> bool:
    method = in_class(type(one), "state_dict")
    return isinstance(method, types.FunctionType) and is_users(method.__module__) and _can_be_copied(one)


def _can_be_copied(one: Any) -> bool:
    kind = type(one)
    is_object = (
        in_class(kind, "__new__") is in_class(object, "__new__")
        and is_users(kind.__module__)
        and not isinstance(one, type)
    )
    return is_object and in_class(kind, "__del__") is UNKNOWN and in_class(kind, "construct") is UNKNOWN


def _state_of(one: Any) -> str:
    """Return the digest of an object's state; empty if it is not plain, or not given for what its attributes are."""
    try:
        state = one.state_dict()
        return digest_of_value(state) if is_plain(state) else ""
    except Exception:  # noqa: BLE001 - code of the user's, with values that it may not take; a save reports its errors
        return ""


def _shown(place: _Place, state: str) -> str:
    """Return how much of a change the state shows: ``"all"``, only ``"much"`` of it, or ``"nothing"``."""
    digits = _with_digits(place.value)
    before = state if digits is place.value else _state_of(place.rebuilt(digits))
    for amount, begun, other in ("all", before, _little(digits)), ("much", state, _much(place.value)):
        found = begun if other is UNKNOWN else _state_of(place.rebuilt(other))
        if not found or not begun:
            return "all"  # the code does not take this value: nothing is known
        if found != begun:
            return amount
    return "nothing"


def _is_carried(place: _Place, whole: Any) -> bool:
    """Return whether methods carry the value from call to call, and no ``load_state_dict`` makes it anew."""
    kind: Any = type(place.holder)
    if place.name not in carried_by(kind):
        return False
    if place.holder is not whole and _has_state_of_its_own(place.holder):
        return True  # it stores and restores the value itself, and is not asked, or not heard
    loaded = (set_by(one, name) for one in {kind, type(whole)} for name in _SET_BY_LOAD)
    return not any(place.name in each for each in loaded)


def _places(
    one: Any, rebuilt: Callable[[Any], Any] = lambda new: new, path: str = "", depth: int = 0
) -> Iterator[_Place]:
    """Yield the attributes with plain values of an object and of those in it."""
    for name, value in attributes_of(one):
        place = _Place(f"{path}.{name}".lstrip("."), one, name, value, _setting(one, name, rebuilt))
        yield from _below(place, depth)


def _below(place: _Place, depth: int) -> Iterator[_Place]:
    """Yield the place, or the attributes of the objects in it."""
    value = place.value
    if _can_be_copied(value):
        if depth < _MAX_DEPTH:
            yield from _places(value, place.rebuilt, place.where, depth + 1)
        return
    if type(value) in (list, tuple, deque, dict):
        items = value.items() if type(value) is dict else enumerate(value)
        inner = [(key, one) for key, one in itertools.islice(items, _MAX_ITEMS) if _can_be_copied(one)]
        for key, one in inner if depth < _MAX_DEPTH else ():
            rebuilt = _replacing(value, key, place.rebuilt)
            yield from _places(one, rebuilt, f"{place.where}[{key!r}]", depth + 1)
        if inner:
            return
    if isinstance(value, _GENERATORS) or is_plain(value):
        yield place


def _setting(one: Any, name: str, rebuilt: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what copies the whole with another value of an attribute."""

    def copied(new: Any) -> Any:
        twin = object.__new__(type(one))
        own = own_attributes(one)
        for each, value in attributes_of(one):
            if each in own:
                vars(twin)[each] = new if each == name else value
            else:  # a slot
                object.__setattr__(twin, each, new if each == name else value)
        return rebuilt(twin)

    return copied


def _replacing(items: Any, at: Any, rebuilt: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what copies the whole with another item of a container."""

    def copied(new: Any) -> Any:
        if type(items) is dict:
            return rebuilt({key: new if key == at else one for key, one in items.items()})
        return rebuilt(type(items)(new if index == at else one for index, one in enumerate(items)))

    return copied


def _with_digits(value: Any) -> Any:
    """Return a value of which a change in the last bit shows whether all digits are kept; of a zero, a third."""
    if type(value) is float:
        return value if math.isfinite(value) and abs(value) > 1e-9 else 1 / 3
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        return _array_with(value, lambda one: one if abs(one) > 1e-4 else one.dtype.type(1 / 3))
    return value if isinstance(value, _GENERATORS) else _other(value, _with_digits, value)


def _little(value: Any) -> Any:
    """Return a value that differs in the last bit, or by one; `UNKNOWN` if there is none."""
    kind = type(value)
    if kind is float:
        return math.nextafter(value, math.inf)
    if isinstance(value, np.ndarray | np.generic):
        return _array_with(value, lambda one: np.nextafter(one, one.dtype.type(math.inf)))
    if kind is int:
        return value + 1
    found = _other(value, _little)
    return _another(value) if found is UNKNOWN else found


def _much(value: Any) -> Any:
    """Return a value that differs in its first digits."""
    kind = type(value)
    if kind in (float, int):
        return value * 3 + 12345 if math.isfinite(value) else 0
    if isinstance(value, np.ndarray | np.generic):
        return _array_with(value, lambda one: one * one.dtype.type(3) + one.dtype.type(12345))
    found = _other(value, _much)
    return _another(value) if found is UNKNOWN else found


def _array_with(value: Any, changed: Callable[[Any], Any]) -> Any:
    """Return a copy of an array, or a number of NumPy's, whose first and last item are changed."""
    array = np.array(value)
    if array.size == 0 or array.dtype.kind not in "fiub":
        return UNKNOWN
    flat = array.reshape(-1)
    for at in {0, array.size - 1}:
        one = flat[at]
        flat[at] = changed(one) if array.dtype.kind == "f" else (not one if array.dtype.kind == "b" else one ^ 1)
    return flat[0] if isinstance(value, np.generic) else flat.reshape(array.shape)


def _other(value: Any, changed: Callable[[Any], Any], otherwise: Any = UNKNOWN) -> Any:
    """Return a container whose last item is ``changed``; ``otherwise`` for any other value."""
    kind = type(value)
    if kind not in (list, tuple, deque, dict) or not value:
        return otherwise
    last = list(value)[-1] if kind is dict else len(value) - 1
    item = changed(value[last])
    if item is UNKNOWN or item is value[last]:
        return otherwise
    return _replacing(value, last, lambda whole: whole)(item)


def _another(value: Any) -> Any:
    """Return another value of what has no digits; `UNKNOWN` if none is known."""
    kind = type(value)
    if isinstance(value, _GENERATORS):
        other = copy.deepcopy(value)
        other.random()
        return other
    if kind in (set, frozenset):
        return kind([*value, 1.5])
    if kind is str:
        return f"{value}."
    if kind is bool:
        return not value
    if value is None:
        return 1.5
    empty: dict[type, Any] = {list: [1.5], tuple: (1.5,), dict: {".": 1.5}, deque: deque([1.5])}
    return empty.get(kind, UNKNOWN)
