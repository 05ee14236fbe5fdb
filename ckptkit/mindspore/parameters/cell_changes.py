"""Notices that cells hold other parameters or other cells than before, without walking through them.

Guarantees: whatever was put into a cell, replaced in it or taken out of it is noticed, without asking `nn.Cell`,
which walks through all cells. Main thread only.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from mindspore import nn

# Where nn.Cell keeps parameters and cells. Were they moved, `tests/with_mindspore/test_slots.py` would fail.
_KEPT_IN = ("_params", "_cells")


class CellChanges:
    """Where ``cells`` and all cells in them keep what they are made of, with what is there now."""

    def __init__(self, cells: Sequence[nn.Cell]) -> None:
        every = {id(one): one for root in cells for _, one in root.cells_and_names()}
        self._kept = [vars(one)[name] for one in every.values() for name in _KEPT_IN if name in vars(one)]
        self._sizes = [*map(len, self._kept)]
        self._held = [*itertools.chain.from_iterable(one.values() for one in self._kept)]

    def are_changed(self) -> bool:
        """Whether something there is another object than it was."""
        if [*map(len, self._kept)] != self._sizes:
            return True
        now = itertools.chain.from_iterable(map(dict.values, self._kept))
        return not all(map(operator.is_, now, self._held))
