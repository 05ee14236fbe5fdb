"""Counts for a train cell that is not ckptkit's own, by the delivered batches, with `ForeignCounting`.

Guarantees: as `step_counting`. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.mindspore.parameters.roles import optimizers_of
from ckptkit.mindspore.state.compatibility import check_cycle, check_same_training
from ckptkit.mindspore.state.reshard import Worlds, schedule_in
from ckptkit.mindspore.train.adapter import (
    CycleAdapter,
    accumulation_steps_of,
    check_restored,
    counters_of,
    updates_next,
)
from ckptkit.mindspore.train.counters import CycleCounters
from ckptkit.mindspore.train.counting import Arrays, CycleLeft, global_step_of

_log = logging.getLogger("ckptkit")

_FENCES = "_ckptkit_fences"
_STEPS = ("global_step", "state_step", "step_t")  # in MindSpore's optimizers, including the experimental ones


class ForeignCounting:
    """Counts for any other train cell, by the delivered batches and a `CycleAdapter`, if there is one.

    Args:
        cell: The train cell.
        cells: All cells of the training.
        cycle: Reports K and the micro-step; None if every call counts as a cycle.
    """

    def __init__(self, cell: nn.Cell, cells: Sequence[nn.Cell], cycle: CycleAdapter | None) -> None:
        self._cell = cell
        self._cycle = cycle
        counters = [getattr(optimizer, name, None) for optimizer in optimizers_of(cells) for name in _STEPS]
        self._counters = [counter for counter in counters if isinstance(counter, ms.Parameter)]
        self._delivered = 0
        self._began: tuple[CycleCounters, list[int]] | None = None
        # Kept on the cell, bypassing nn.Cell's attribute handling: all state managers of a cell share its fences, so
        # that a restore by one of them runs the fences of the others.
        self._fences: list[Callable[[], None]] = vars(cell).setdefault(_FENCES, [])
        self._base = global_step_of(cell)
        self._first, self._told = (0, self._counts()), False

    def deliver(self, batches: int | None) -> int:
        """See `Counting`."""
        self._delivered = self._delivered + 1 if batches is None else batches
        self._fence_if_due()
        return self._delivered

    def now(self) -> tuple[CycleCounters, int]:
        """See `Counting`."""
        return counters_of(self._cycle, self._delivered), self._delivered

    def record(self) -> dict[str, Any]:
        """See `Counting`."""
        return {"accumulation": None, "global_step_at_start": self._base}

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """See `Counting`. The cell determines K itself, so in another world K must already be that world's."""
        check_same_training(contents, recorded["accumulation"], None)
        schedule = AccumulationSchedule(accumulation_steps_of(self._cycle))
        if worlds is not None and worlds.before != worlds.now:
            schedule_in(contents, None, schedule, Worlds(worlds.before, worlds.now, first=worlds.now))
        return CycleLeft(check_cycle(contents, None, schedule, may_change=False), schedule)

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """See `Counting`; raises StateMismatchError if the adapter contradicts the checkpoint."""
        self._delivered = progress.batches_delivered
        self._base = recorded["global_step_at_start"]
        self._first = self._delivered, self._counts()
        check_restored(self._cycle, progress)

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """Do nothing: ckptkit does not know a foreign cell's counters. `now` asks the adapter."""

    def tell_updates(self) -> None:
        """See `Counting`."""
        batches = self._delivered - self._first[0]
        updates = self._updates_since(self._first[1], default=0)
        if self._cycle is None and not self._told and 0 < updates < batches:
            self._told = True
            _log.info(
                "the optimizer counted %d updates in %d batches, and %s does not tell its K: what is called a step "
                "is a batch (SaveEvery(optimizer_steps=...), ls, report). Training(cycle=...) tells K",
                *(updates, batches, type(self._cell).__name__),
            )

    def begin_loop(self) -> None:
        """See `Counting`."""
        self._began = self.now()[0], self._counts()

    def read_ahead(self) -> str | None:
        """See `Counting`. Only the first call after a taken batch decides; later, a loop may skip batches on purpose.

        A single batch is the one that was trained. Several batches were trained if some optimizer counted as many
        cycles. If no optimizer counts, nothing is reported. Without an adapter, an optimizer that has not counted yet
        may still do so.
        """
        if self._began is None or self._delivered == self._began[0].micro_steps:
            return None
        before, counts = self._began
        taken, cycles = self._delivered - before.micro_steps, self.now()[0].cycles - before.cycles
        updates = self._updates_since(counts, default=cycles)
        if taken > 1 and self._cycle is None and updates == 0:
            return None
        self._began = None
        if taken == 1 or updates >= cycles:
            return None
        return (
            f"{taken} batches of resumable() were taken before the first step() or save(), but the optimizers "
            f"counted {updates} updates. If the loop reads ahead, a resume skips the batches that it holds: read "
            "ahead before resumable() instead. If it adds up gradients or skips batches, this is correct; give "
            "Training(cycle=...), or call manager.step(state) after each batch, to turn this check off"
        )

    def end_epoch(self) -> None:
        """Do nothing: the foreign cell decides whether its cycles end with an epoch."""

    def expect_epoch_end(self, last: bool) -> None:
        """Do nothing, for the same reason."""

    def refuse_open_remainder(self, batches_per_epoch: int) -> None:
        """Do nothing, for the same reason."""

    def steady_optimizers(self) -> list[nn.Cell]:
        """See `Counting`: the optimizers of a cell whose adapter promises it."""
        return optimizers_of([self._cell]) if getattr(self._cycle, "steady_within_cycle", False) else []

    def guard(self, fence: Callable[[], None]) -> None:
        """See `Counting`."""
        if fence not in self._fences:
            self._fences.append(fence)
        self._fence_if_due()

    def fence(self) -> None:
        """See `Counting`."""
        while self._fences:
            self._fences[-1]()  # popped only afterwards: a fence that raises runs again at the next call
            self._fences.pop()

    def _counts(self) -> list[int]:
        """Return the counts of those optimizers that count. Waits for the device."""
        return [int(counter.asnumpy().reshape(-1)[0]) for counter in self._counters]

    def _updates_since(self, counts: Sequence[int], *, default: int) -> int:
        """Return how far the optimizer went that went farthest since `counts`; ``default`` if none counts."""
        return max((now - then for now, then in zip(self._counts(), counts, strict=True)), default=default)

    def _fence_if_due(self) -> None:
        """Run the fences if the next call updates: nothing can run between that call's micro-step and its update."""
        if self._fences and updates_next(self._cycle):
            self.fence()
