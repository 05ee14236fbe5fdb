"""Detects that cells hold other parameters or other cells than before, without walking through them.

Guarantees: anything added to a cell, replaced in it or removed from it is detected, without `nn.Cell`'s own methods,
which walk through all cells. Main thread only.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import mindspore as ms
from mindspore import nn

from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.roles import all_of

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


class KeptParameters:
    """Refuses a training whose cells have other parameters than when this was made.

    Args:
        cells: The cells.
        name: Name under which they were given, for messages.
    """

    def __init__(self, cells: Sequence[nn.Cell], name: str = "") -> None:
        self._cells = cells
        self._prefix = f"{name}/" if name else ""
        self._changes = CellChanges(cells)
        self._known = self._now()  # holds the parameters, so that no id is reused

    def refuse_replaced(self) -> None:
        """Raise ResumeError if a parameter was replaced, added or removed."""
        if not self._changes.are_changed():
            return
        now = self._now()
        if self._known.keys() != now.keys():
            every = {**self._known, **now}
            names = sorted({f"{self._prefix}{every[one].name}" for one in self._known.keys() ^ now.keys()})
            raise ResumeError(
                f"parameters were replaced or added after the StateManager was made: {some(names)}. The optimizer "
                "keeps the old ones, and a new start does not have the new ones, so no resume could be exact. Set a "
                "parameter with ops.assign; change the network before making the StateManager"
            )
        self._changes = CellChanges(self._cells)

    def _now(self) -> dict[int, ms.Parameter]:
        return {id(one): one for cell in self._cells for one in all_of(cell)}
