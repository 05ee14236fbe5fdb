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
from mindspore.ops import Primitive

from ckptkit.mindspore.inspect.attributes import is_users, own_attributes
from ckptkit.mindspore.inspect.carried import BARE

# The code of these types is not read, nor the code of what is in containers.
_VALUES = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray, np.float64, np.float32, np.int64)


class Alike:
    """Gives cells that are alike the same key."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._keys: dict[int, tuple[nn.Cell, Hashable]] = {}  # holds the cells, so that no id is reused

    def key(self, cell: nn.Cell) -> Hashable:
        """Return a key that is equal for alike cells."""
        if id(cell) not in self._keys:
            self._keys[id(cell)] = cell, id(cell)  # ends the recursion when cells hold each other
            own = own_attributes(cell)
            held = {name: one for name, one in own.items() if name not in BARE}
            held.update(own.get("_cells") or {})
            parts = type(cell), *((name, self._key_of(one)) for name, one in held.items())
            # A number: a nested key would be as large as the network.
            self._keys[id(cell)] = cell, ("cell", self._numbers.setdefault(parts, len(self._numbers)))
        return self._keys[id(cell)][1]

    def _key_of(self, one: Any) -> object:
        kind = type(one)
        if issubclass(kind, nn.Cell):
            return self.key(one)
        is_value = kind in _VALUES or (issubclass(kind, (ms.Tensor, Primitive)) and not is_users(kind.__module__))
        return kind if is_value else id(one)
