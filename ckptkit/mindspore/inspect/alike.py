"""Tells which cells are alike, so that the code of a thousand layers is read once and not a thousand times.

Guarantees: of two cells that are alike, code names the same below both, but for values whose code nobody reads. Keeps
the cells while it lives, and nothing beyond. Any thread.
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

# Code is not read of these, and not of what is in containers.
_VALUES = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray)


class Alike:
    """Gives cells that are alike the same key."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._keys: dict[int, tuple[nn.Cell, Hashable]] = {}  # with the cells, so that no id is given away again

    def key(self, cell: nn.Cell) -> Hashable:
        """Return what is equal for cells that are alike."""
        if id(cell) not in self._keys:
            self._keys[id(cell)] = cell, id(cell)  # for cells that hold each other
            own = own_attributes(cell)
            held = {name: one for name, one in own.items() if name not in BARE}
            held.update(own.get("_cells") or {})
            parts = type(cell), *((name, self._key_of(one)) for name, one in held.items())
            # A number, since the key of a network would be as large as the network.
            self._keys[id(cell)] = cell, ("cell", self._numbers.setdefault(parts, len(self._numbers)))
        return self._keys[id(cell)][1]

    def _key_of(self, one: Any) -> object:
        kind = type(one)
        if issubclass(kind, nn.Cell):
            return self.key(one)
        is_value = kind in _VALUES or (issubclass(kind, (ms.Tensor, Primitive)) and not is_users(kind.__module__))
        return kind if is_value else id(one)
