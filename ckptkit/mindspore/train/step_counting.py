"""Chooses how the micro-steps of a training are counted: `own_counting` or `foreign_counting`.

Both guarantee: the counts in the parameters, in the train cell and of the delivered batches are compared at every save
and before every restore; a disagreement raises. No count is guessed. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mindspore import nn
from mindspore.boost import GradientAccumulation

from ckptkit.mindspore.train.adapter import CycleAdapter, reports_cycles
from ckptkit.mindspore.train.cell import AccumulationTrainCell
from ckptkit.mindspore.train.counting import Counting
from ckptkit.mindspore.train.foreign_counting import ForeignCounting
from ckptkit.mindspore.train.own_counting import OwnCounting

_log = logging.getLogger("ckptkit")


def counting_of(
    cell: nn.Cell,
    cells: Sequence[nn.Cell],
    cycle: CycleAdapter | None = None,
    *,
    may_change_k: bool = False,
) -> Counting:
    """Return the counting for ``cell``.

    Args:
        cell: The train cell.
        cells: All cells of the training.
        cycle: Reports K and the micro-step of another cell than an `AccumulationTrainCell`.
        may_change_k: Whether a restore accepts another K than the checkpoint's.

    Raises:
        ValueError: If ``cycle`` is given with an `AccumulationTrainCell`.
        TypeError: If ``cycle`` is not a `CycleAdapter`.
    """
    if isinstance(cell, AccumulationTrainCell):
        if cycle is not None:
            raise ValueError("an AccumulationTrainCell counts for itself; leave Training(cycle=...) out")
        return OwnCounting(cell, may_change_k=may_change_k)
    if cycle is None and reports_cycles(cell):
        cycle = cell
    if cycle is None:
        _hint_at_boost(cell)
        return ForeignCounting(cell, cells, None)
    if not reports_cycles(cycle):
        raise TypeError(f"cycle must have accumulation_steps and micro_step, got {type(cycle).__name__}")
    return ForeignCounting(cell, cells, cycle)


def _hint_at_boost(cell: nn.Cell) -> None:
    """Warn about a `GradientAccumulation` in ``cell``, without using it as the adapter.

    A cell that skips it at an overflow would contradict the batches delivered.
    """
    for name, one in cell.cells_and_names():
        if isinstance(one, GradientAccumulation):
            _log.warning(
                "%s accumulates by boost.GradientAccumulation (%s), and every call counts as a cycle: saves due by "
                "optimizer_steps are due by calls. If each call of the train cell calls it once, declare it: "
                "Training(cycle=ckptkit.BoostCycle(it))",
                *(type(cell).__name__, name or "itself"),
            )
