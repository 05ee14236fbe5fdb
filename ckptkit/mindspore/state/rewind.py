"""Keeps the state at the start of the running cycle, so that a save within the cycle can store that instead.

Guarantees: a `CycleStart` holds copies. `check_unchanged` raises unless everything except the accumulators still has
the same bits, since only then the cycle can begin again. Main thread only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from mindspore import nn

from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf, digests_of
from ckptkit.core.text import some
from ckptkit.errors import ResumeError
from ckptkit.mindspore.nn.dropout import Dropout
from ckptkit.mindspore.train.cell import AccumulationTrainCell

_WHY = (
    'Saving(mid_cycle="rewind") begins the running cycle again, and the same micro-batches would change this state '
    'a second time. Use "exact", which stores the accumulators, or "align", which saves at boundaries'
)


class CycleStart:
    """Holds the state at the beginning of a cycle."""

    def __init__(self, progress: Progress, sections: Mapping[str, Any], leaves: Iterable[Leaf]) -> None:
        self.progress = progress
        self.sections: dict[str, Any] = copy.deepcopy(dict(sections))
        self._digests = digests_of([*leaves])

    def check_unchanged(self, leaves: Iterable[Leaf]) -> None:
        """Compare ``leaves``, as they are now, with those at the beginning."""
        now = digests_of([*leaves])
        changed = sorted(name for name, digest in now.items() if self._digests.get(name) != digest)
        if changed:
            raise ResumeError(f"{some(changed)} changed since the cycle began. {_WHY}.")


def check_rewindable(cell: nn.Cell) -> None:
    """Raise ResumeError if a cycle of ``cell`` is known not to begin again exactly; names some of its cells."""
    if not isinstance(cell, AccumulationTrainCell):
        raise ResumeError(
            f'Saving(mid_cycle="rewind") needs an AccumulationTrainCell, which knows where a cycle begins; this is '
            f'a {type(cell).__name__}. Use "exact"'
        )
    # MindSpore's classes share no public base class.
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, Dropout)
    found = [f"{name} ({type(one).__name__})" for name, one in cell.cells_and_names() if isinstance(one, kinds)]
    if found:
        raise ResumeError(f"{some(found)} keeps state of every micro-batch. {_WHY}.")
