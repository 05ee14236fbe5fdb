"""Tells which cells are alike, so that the code of a thousand layers is read once.

Guarantees: below two alike cells, code names the same things, except for values whose code is never read. Keeps
the cells alive while the object lives, and nothing else. Any thread.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.common.initializer import Initializer
from mindspore.ops import Primitive

from ckptkit.mindspore.inspect.attributes import own_attributes
from ckptkit.mindspore.inspect.carried_attributes import beside_bare
from ckptkit.mindspore.inspect.users import is_users

# The code of these types is not read, nor the code of what is in containers.
_OF_MINDSPORE = (ms.Tensor, Primitive, Initializer)  # and not of a class of the user's
_VALUES = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray, np.float64, np.float32, np.int64)


class Alike:
    """Gives cells that are alike the same key.

    Args:
        depth: How many levels of cells below a cell count; deeper ones count by their class alone. None for all.
    """

    def __init__(self, depth: int | None = None) -> None:
        self._depth = depth
        self._numbers: dict[tuple[object, ...], int] = {}
        # Holds the cells, so that no id is reused.
        self._keys: dict[tuple[int, int | None], tuple[nn.Cell, Hashable]] = {}

    def key(self, cell: nn.Cell) -> Hashable:
        """Return a key that is equal for alike cells."""
        return self._key_in(cell, self._depth)

    def _key_in(self, cell: nn.Cell, depth: int | None) -> Hashable:
        if depth is not None and depth < 0:
            return str(type(cell)), id(type(cell))
        at = (id(cell), depth)
        if at not in self._keys:
            self._keys[at] = cell, id(cell)  # ends the recursion when cells hold each other
            own = own_attributes(cell)
            below = None if depth is None else depth - 1
            held = {**beside_bare(cell), **(own.get("_cells") or {})}
            parts = type(cell), *((name, self._key_of(one, below)) for name, one in held.items())
            # A number: a nested key would be as large as the network.
            self._keys[at] = cell, ("cell", self._numbers.setdefault(parts, len(self._numbers)))
        return self._keys[at][1]

    def _key_of(self, one: Any, depth: int | None) -> object:
        kind = type(one)
        if issubclass(kind, nn.Cell):
            return self._key_in(one, depth)
        is_value = kind in _VALUES or (issubclass(kind, _OF_MINDSPORE) and not is_users(kind.__module__))
        return kind if is_value else id(one)
