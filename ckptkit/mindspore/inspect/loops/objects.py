"""Knows which objects checkpoints hold, and how the code writes all others.

Guarantees: keeps the objects that it knows, so that no id is given away again; runs no code of the user's. Main thread
only.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

from ckptkit.mindspore.inspect.attributes import UNKNOWN, attribute, below, is_users
from ckptkit.mindspore.inspect.carried import GENERATORS
from ckptkit.mindspore.inspect.loops.flow import Place

_MOST = 20_000  # objects that are known
_CODE = (types.ModuleType, types.MethodType)
_NO_ATTRIBUTES = (nn.Cell, ms.Tensor, ds.Dataset, *_CODE)
_NO_STATE = (nn.Cell, ms.Parameter, ds.Dataset, *_CODE, types.FunctionType, type)
_NOT_SEARCHED = (*_CODE, types.FunctionType, type, ms.Tensor, str, int, float, types.NoneType)


class Objects:
    """The objects and places that are met while code is read.

    Args:
        known: What checkpoints hold by name, and the data that they position; what lies in them is known, too.
    """

    def __init__(self, known: Iterable[Any]) -> None:
        self._known = _by_id(known)
        self._places: dict[Place, tuple[str, Any]] = {}  # how it is written, and what is there
        self._objects: dict[int | str, tuple[str, Any]] = {}  # by id

    def is_known(self, one: Any) -> bool:
        """Whether checkpoints hold it, or position it."""
        return id(one) in self._known

    def is_plain(self, one: Any) -> bool:
        """Whether it is an object of the user's whose attributes no checkpoint holds."""
        if one is UNKNOWN or isinstance(one, _NO_ATTRIBUTES) or self.is_known(one):
            return False
        # Functions and classes have attributes, too.
        home = one if isinstance(one, (type, types.FunctionType)) else type(one)
        return home is types.SimpleNamespace or is_users(home.__module__)

    def note(self, path: str, one: Any, place: Place) -> None:
        """Note how a place and the object there are written, unless there is a name already."""
        self._places.setdefault(place, (path, one))
        if self.is_plain(one) or isinstance(one, (*GENERATORS, Iterator)):
            self.path_of(one, path)

    def path_of(self, one: Any, path: str) -> str:
        """How the object is written: as it was first met, or else ``path``."""
        return self._objects.setdefault(id(one), (path, one))[0]

    def attribute_of(self, owner: Any, path: str, name: str) -> Place:
        """Return the place of an attribute of an object, which is written ``path`` unless there is a name already."""
        place = Place(id(owner), name)
        self.note(f"{self.path_of(owner, path)}.{name}", attribute(owner, name), place)
        return place

    def holder(self, place: Place) -> tuple[str, str] | None:
        """How the object that has the place is written, and its kind; a variable by itself; None if it is no state."""
        path, one = self._places[place]
        if isinstance(one, _NO_STATE) or self.is_known(one):
            return None
        if place.within in self._objects:
            path, owner = self._objects[place.within]
            return path, type(owner).__name__
        return path, ""

    def at(self, place: Place) -> Any:
        """Return what is at a place."""
        return self._places[place][1]


def _by_id(known: Iterable[Any]) -> dict[int, Any]:
    """Them and what lies in them; not what their code names."""
    seen: dict[int, Any] = {}
    waiting = deque(known)
    while waiting and len(seen) < _MOST:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, _NOT_SEARCHED):
            continue
        seen[id(one)] = one
        if not isinstance(one, (nn.Cell, np.ndarray)):
            waiting.extend(value for _, value in below(one))
    return seen
