"""Counts the micro-steps of a training, and proves that all counts agree.

Guarantees: the counts in the parameters, in the train cell and of the delivered batches are compared at every save
and before every restore; a disagreement raises. No count is guessed. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.boost import GradientAccumulation

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.roles import optimizers_of
from ckptkit.mindspore.state.compatibility import check_cycle, check_same_training, prove_divisor, prove_updates
from ckptkit.mindspore.state.reshard import Worlds, schedule_in
from ckptkit.mindspore.train.adapter import (
    CycleAdapter,
    accumulation_steps_of,
    check_restored,
    counters_of,
    reports_cycles,
    updates_next,
)
from ckptkit.mindspore.train.cell import AccumulationTrainCell
from ckptkit.mindspore.train.completion import Completion
from ckptkit.mindspore.train.counters import CycleCounters
from ckptkit.mindspore.train.counting import Arrays, Counting, CycleLeft, global_step_of
from ckptkit.mindspore.train.last_call import LastCall

_log = logging.getLogger("ckptkit")

_FENCES = "_ckptkit_fences"


class OwnCounting:
    """Counts for an `AccumulationTrainCell`, which counts its own calls, until batches are counted separately.

    Args:
        cell: The train cell; the run began as many updates ago as it has counted.
        may_change_k: Whether a restore accepts another K than the checkpoint's.
        delivers_first: Whether a batch counts as delivered before it is trained, as by `ckptkit.data.resumable`.
    """

    def __init__(self, cell: AccumulationTrainCell, *, may_change_k: bool, delivers_first: bool) -> None:
        self._cell = cell
        self._may_change_k = may_change_k
        self._delivered: int | None = None
        step = global_step_of(cell)
        self._base = None if step is None else step - cell.counters.updates
        self._completion = Completion(delivers_first=delivers_first)

    def deliver(self, batches: int | None) -> int:
        """See `Counting`."""
        self._completion.begin()
        if batches is not None:
            self._delivered = batches
        else:  # the cell has already counted this batch
            self._delivered = self._cell.counters.micro_steps if self._delivered is None else self._delivered + 1
        return self._delivered

    def complete_step(self) -> None:
        """See `Counting`."""
        self._completion.step(self._place())

    def _place(self) -> tuple[int, int]:
        """Return the numbers of calls and of delivered batches: one of them is ahead while a batch is not done."""
        micro_steps = self._cell.counters.micro_steps
        return micro_steps, micro_steps if self._delivered is None else self._delivered

    def now(self) -> tuple[CycleCounters, int]:
        """See `Counting`."""
        counters = self._cell.counters
        return counters, counters.micro_steps if self._delivered is None else self._delivered

    def record(self) -> dict[str, Any]:
        """See `Counting`."""
        return {"accumulation": accumulation_of(self._cell), "global_step_at_start": self._base}

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """See `Counting`."""
        before = recorded["accumulation"]
        check_same_training(contents, before, accumulation_of(self._cell))
        left = self._left(contents, before, worlds)
        # When EarlyStopping ends a training, it may restore the best weights, with their accumulators and counters.
        if recorded["ended"] is None:
            self._prove_stored(contents, recorded["global_step_at_start"])
        return left

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """See `Counting`."""
        self._cell.load_counters(
            CycleCounters(
                accumulation_steps=left.accumulation_steps,
                micro_step=progress.micro_step,
                cycles=progress.cycles,
                updates=progress.updates,
                micro_steps=progress.batches_delivered,
                first_micro_step=progress.cycle_first_batch,
            ),
            left.schedule,
        )
        if left.schedule is not left.schedule.given:
            _log.info(
                "accumulation_steps of the train cell are taken as those of the %d ranks that the run began with; here "
                "they are %d from this cycle on",
                recorded["first_world"],
                left.accumulation_steps,
            )
        self._delivered = None
        self._base = recorded["global_step_at_start"]
        self._completion.restored(self._place(), self.now()[1])

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """See `Counting`."""
        self._prove(progress, arrays, self._base)

    def doubt(self) -> str | None:
        """See `Counting`; the cell refuses to be saved after a call that did not return."""
        return self._completion.judge(self._place(), self.now()[1])

    def begin_loop(self) -> None:
        """See `Counting`."""
        self._completion.restored(self._place(), self.now()[1])

    def read_ahead(self) -> str | None:
        """Return None: `now` gives both counts, which have to agree."""

    def end_epoch(self) -> None:
        """See `Counting`."""
        self._cell.end_epoch()

    def expect_epoch_end(self, last: bool) -> None:
        """See `Counting`."""
        self._cell.expect_epoch_end(last)

    def refuse_open_remainder(self, batches_per_epoch: int) -> None:
        """See `Counting`."""
        if self._cell.counters.micro_step == 0 or self._cell.remainder == "carry":
            return
        counters, delivered = self.now()
        if counters.first_micro_step // batches_per_epoch != delivered // batches_per_epoch:
            raise ResumeError(
                f'an epoch of {batches_per_epoch} batches ended within a cycle and remainder="{self._cell.remainder}" '
                "was not applied: call the train cell's end_epoch() after the last micro-step of each epoch, "
                "before the save there"
            )

    def steady_optimizers(self) -> list[nn.Cell]:
        """See `Counting`; empty for a subclass with its own ``__call__``, which may write before or after the fence."""
        own_call = type(self._cell).__call__ is not AccumulationTrainCell.__call__
        return [] if own_call else [self._cell.optimizer]

    def guard(self, fence: Callable[[], None]) -> None:
        """See `Counting`."""
        self._cell.guard(fence)

    def fence(self) -> None:
        """See `Counting`."""
        self._cell.fence()

    def _left(self, contents: Contents, before: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        schedule = self._cell.schedule
        if worlds is not None:
            schedule = schedule.given
            fitting = schedule_in(contents, before["steps"], schedule, worlds)
            if fitting is not None:
                return CycleLeft(contents.progress.accumulation_steps, fitting)
        return CycleLeft(check_cycle(contents, before, schedule, may_change=self._may_change_k), schedule)

    def _prove_stored(self, contents: Contents, base: int | None) -> None:
        step = getattr(self._cell.optimizer, "global_step", None)
        counters = [self._cell.accumulators[-1].name, *([step.name] if isinstance(step, ms.Parameter) else [])]
        names = [name for name in counters if name in contents.entries]
        try:
            self._prove(contents.progress, {name: contents.peek(name) for name in names}, base)
        except ResumeError:
            contents.prove(names)  # altered bytes mean a corrupt checkpoint, not another training
            raise

    def _prove(self, progress: Progress, arrays: Arrays, base: int | None) -> None:
        divisor = self._cell.accumulators[-1].name
        if divisor in arrays and self._cell.normalize == "micro_batches":
            prove_divisor(progress, divisor, float(arrays[divisor].reshape(-1)[0]))
        step = getattr(self._cell.optimizer, "global_step", None)
        if isinstance(step, ms.Parameter):
            prove_updates(progress, int(arrays[step.name].reshape(-1)[0]), base)


class ForeignCounting:
    """Counts for any other train cell, by the delivered batches and a `CycleAdapter`, if there is one.

    Args:
        cell: The train cell.
        cells: All cells of the training.
        cycle: Reports K and the micro-step; None if every call counts as a cycle.
        delivers_first: Whether a batch counts as delivered before it is trained.
    """

    def __init__(
        self, cell: nn.Cell, cells: Sequence[nn.Cell], cycle: CycleAdapter | None, *, delivers_first: bool
    ) -> None:
        self._cell = cell
        self._cycle = cycle
        self._completion = Completion(delivers_first=delivers_first)
        self._last_call = LastCall(cells, self._completion, counts=accumulation_steps_of(cycle) == 1)
        self._delivered = 0
        self._began: tuple[CycleCounters, list[int]] | None = None
        # Kept on the cell, bypassing nn.Cell's attribute handling: all state managers of a cell share its fences, so
        # that a restore by one of them runs the fences of the others.
        self._fences: list[Callable[[], None]] = vars(cell).setdefault(_FENCES, [])
        self._base = global_step_of(cell)

    def deliver(self, batches: int | None) -> int:
        """See `Counting`."""
        self._completion.begin()
        self._delivered = self._delivered + 1 if batches is None else batches
        self._fence_if_due()
        return self._delivered

    def complete_step(self) -> None:
        """See `Counting`."""
        self._completion.step(self._delivered)

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
        self._completion.restored(self._delivered, self._delivered)
        self._last_call.restored(self._delivered)
        check_restored(self._cycle, progress)

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """Do nothing: ckptkit does not know a foreign cell's counters. `now` asks the adapter."""

    def doubt(self) -> str | None:
        """See `Counting`."""
        return self._last_call.doubt(self._delivered)

    def begin_loop(self) -> None:
        """See `Counting`."""
        self._completion.restored(self._delivered, self._delivered)
        self._last_call.restored(self._delivered)
        self._began = self.now()[0], self._last_call.counts()

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
        updates = self._last_call.updates_since(counts, default=cycles)
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

    def _fence_if_due(self) -> None:
        """Run the fences if the next call updates: nothing can run between that call's micro-step and its update."""
        if self._fences and updates_next(self._cycle):
            self.fence()


def accumulation_of(cell: AccumulationTrainCell) -> dict[str, Any]:
    """Return how ``cell`` accumulates, in the form that checkpoints record and compare."""
    return {
        "steps": cell.schedule.recorded(),
        "normalize": cell.normalize,
        "remainder": cell.remainder,
        "clip_norm": cell.clip_norm,
        "loss_scaler": None if cell.loss_scale is None else cell.loss_scale.described(),
    }


def counting_of(
    cell: nn.Cell,
    cells: Sequence[nn.Cell],
    cycle: CycleAdapter | None = None,
    *,
    may_change_k: bool = False,
    delivers_first: bool = False,
) -> Counting:
    """Return the counting for ``cell``.

    Args:
        cell: The train cell.
        cells: All cells of the training.
        cycle: Reports K and the micro-step of another cell than an `AccumulationTrainCell`.
        may_change_k: Whether a restore accepts another K than the checkpoint's.
        delivers_first: Whether a batch counts as delivered before it is trained, as by `ckptkit.data.resumable`.

    Raises:
        ValueError: If ``cycle`` is given with an `AccumulationTrainCell`.
        TypeError: If ``cycle`` is not a `CycleAdapter`.
    """
    if isinstance(cell, AccumulationTrainCell):
        if cycle is not None:
            raise ValueError("an AccumulationTrainCell counts for itself; leave Training(cycle=...) out")
        return OwnCounting(cell, may_change_k=may_change_k, delivers_first=delivers_first)
    if cycle is None and reports_cycles(cell):
        cycle = cell
    if cycle is None:
        _hint_at_boost(cell)
        return ForeignCounting(cell, cells, None, delivers_first=delivers_first)
    if not reports_cycles(cycle):
        raise TypeError(f"cycle must have accumulation_steps and micro_step, got {type(cycle).__name__}")
    return ForeignCounting(cell, cells, cycle, delivers_first=delivers_first)


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
