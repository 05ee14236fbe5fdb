"""Detects that cells hold other parameters or other cells than before, without walking through them.

Guarantees: anything added to a cell, replaced in it or removed from it is detected, without `nn.Cell`'s own methods,
which walk through all cells. Main thread only.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from mindspore import nn

# Where nn.Cell keeps parameters and cells. If these move, `tests/unit/mindspore/parameters/test_cell_changes.py` fails.
_KEPT_IN = ("_params", "_cells")


class CellChanges:
    """Remembers the present parameters and cells in ``cells`` and in all cells inside them."""

    def __init__(self, cells: Sequence[nn.Cell]) -> None:
        every = {id(one): one for root in cells for _, one in root.cells_and_names()}
        self._kept = [vars(one)[name] for one in every.values() for name in _KEPT_IN if name in vars(one)]
        self._sizes = [*map(len, self._kept)]
        self._held = [*itertools.chain.from_iterable(one.values() for one in self._kept)]

    def are_changed(self) -> bool:
        """Return whether any of them has been added, replaced or removed."""
        if [*map(len, self._kept)] != self._sizes:
            return True
        now = itertools.chain.from_iterable(map(dict.values, self._kept))
        return not all(map(operator.is_, now, self._held))
