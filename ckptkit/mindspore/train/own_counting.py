"""Counts for an `AccumulationTrainCell`, which counts its own calls, by `OwnCounting`.

Guarantees: as `step_counting`. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import mindspore as ms
from mindspore import nn

from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError
from ckptkit.mindspore.state.compatibility import check_cycle, check_same_training, prove_divisor, prove_updates
from ckptkit.mindspore.state.reshard import Worlds, schedule_in
from ckptkit.mindspore.train.cell import AccumulationTrainCell
from ckptkit.mindspore.train.counters import CycleCounters
from ckptkit.mindspore.train.counting import Arrays, CycleLeft, global_step_of

_log = logging.getLogger("ckptkit")


class OwnCounting:
    """Counts for an `AccumulationTrainCell`, which counts its own calls, until batches are counted separately.

    Args:
        cell: The train cell; the run began as many updates ago as it has counted.
        may_change_k: Whether a restore accepts another K than the checkpoint's.
    """

    def __init__(self, cell: AccumulationTrainCell, *, may_change_k: bool) -> None:
        self._cell = cell
        self._may_change_k = may_change_k
        self._delivered: int | None = None
        step = global_step_of(cell)
        self._base = None if step is None else step - cell.counters.updates

    def deliver(self, batches: int | None) -> int:
        """See `Counting`."""
        if batches is not None:
            self._delivered = batches
        else:  # the cell has already counted this batch
            self._delivered = self._cell.counters.micro_steps if self._delivered is None else self._delivered + 1
        return self._delivered

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

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """See `Counting`."""
        self._prove(progress, arrays, self._base)

    def tell_updates(self) -> None:
        """Do nothing: the cell counts its updates."""

    def begin_loop(self) -> None:
        """Do nothing: `read_ahead` needs no count."""

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
            self._prove(contents.progress, {name: contents.peek(name) for name in names}, base)

    def _prove(self, progress: Progress, arrays: Arrays, base: int | None) -> None:
        divisor = self._cell.accumulators[-1].name
        if divisor in arrays and self._cell.normalize == "micro_batches":
            prove_divisor(progress, divisor, float(arrays[divisor].reshape(-1)[0]))
        step = getattr(self._cell.optimizer, "global_step", None)
        if isinstance(step, ms.Parameter):
            prove_updates(progress, int(arrays[step.name].reshape(-1)[0]), base)


def accumulation_of(cell: AccumulationTrainCell) -> dict[str, Any]:
    """Return how ``cell`` accumulates, in the form that checkpoints record and compare."""
    return {
        "steps": cell.schedule.recorded(),
        "normalize": cell.normalize,
        "remainder": cell.remainder,
        "clip_norm": cell.clip_norm,
        "loss_scaler": None if cell.loss_scale is None else cell.loss_scale.described(),
    }
