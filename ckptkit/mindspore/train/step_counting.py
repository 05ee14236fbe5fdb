"""Who counts the micro-steps of a training, and the proof that all who count agree.

Guarantees: what is counted in parameters, by the train cell and by whoever delivers the batches is compared at
every save and before every restore; a disagreement raises, and nothing is ever guessed. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import mindspore as ms
from mindspore import nn
from mindspore.boost import GradientAccumulation

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Array
from ckptkit.errors import ResumeError
from ckptkit.mindspore.parameters.parameters import optimizers_of
from ckptkit.mindspore.state.compatibility import check_cycle, check_same_training, prove_divisor, prove_updates
from ckptkit.mindspore.state.reshard import Worlds, schedule_in
from ckptkit.mindspore.train.adapter import (
    CycleAdapter,
    accumulation_steps_of,
    check_restored,
    counters_of,
    updates_next,
)
from ckptkit.mindspore.train.cell import AccumulationTrainCell
from ckptkit.mindspore.train.counters import CycleCounters

_log = logging.getLogger("ckptkit")

_FENCES = "_ckptkit_fences"
_STEPS = ("global_step", "state_step", "step_t")  # of MindSpore's optimizers, its experimental ones among them


class Arrays(Protocol):
    """Bits of tensors by name."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> Array: ...


class CycleLeft(NamedTuple):
    """How a restored run goes on.

    Attributes:
        accumulation_steps: K by which its running cycle ends.
        schedule: K of the cycles after it.
    """

    accumulation_steps: int
    schedule: AccumulationSchedule


class Counting(Protocol):
    """Counts for a `StateManager`; ckptkit's own train cell and all others differ below it."""

    def deliver(self, batches: int | None) -> None:
        """So many batches were delivered since epoch 0, or, with None, one more."""
        ...

    def now(self) -> tuple[CycleCounters, int]:
        """Where the train cell stands, and the batches delivered."""
        ...

    def record(self) -> dict[str, Any]:
        """What a checkpoint stores of it."""
        ...

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """Raise unless the run can go on from ``contents``; how its running cycle ends. Changes nothing.

        Args:
            contents: As they are in this world.
            recorded: By `record`, in the world of the checkpoint.
            worlds: Where the K of another world may be folded into this one's; None where nothing is.
        """
        ...

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """Go on from there, once the parameters have been restored."""
        ...

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """Raise ResumeError unless the parameters, given by name, counted the same as ``progress``."""
        ...

    def begin_loop(self) -> None:
        """From now on batches of `ckptkit.data.resumable` are taken."""
        ...

    def read_ahead(self) -> str | None:
        """How some of them seem to have been taken that were not trained; says it once, before the first save."""
        ...

    def end_epoch(self) -> None:
        """An epoch has ended."""
        ...

    def expect_epoch_end(self, last: bool) -> None:
        """An epoch ends with the next micro-step, or does not."""
        ...

    def refuse_open_remainder(self, batches_per_epoch: int) -> None:
        """Raise ResumeError if an epoch ended within the running cycle and should not have."""
        ...

    def steady_optimizers(self) -> list[nn.Cell]:
        """The optimizers whose parameters nothing changes but the last call of a cycle, and `guard` fences that one."""
        ...

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` before the next update."""
        ...

    def fence(self) -> None:
        """Call those now, because others than the train cell are about to change parameters."""
        ...


class OwnCounting:
    """Of an `AccumulationTrainCell`, which counts its own calls, until somebody counts beside it.

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

    def deliver(self, batches: int | None) -> None:
        """As `Counting`."""
        if batches is not None:
            self._delivered = batches
        else:  # the cell has counted this one already
            self._delivered = self._cell.counters.micro_steps if self._delivered is None else self._delivered + 1

    def now(self) -> tuple[CycleCounters, int]:
        """As `Counting`."""
        counters = self._cell.counters
        return counters, counters.micro_steps if self._delivered is None else self._delivered

    def record(self) -> dict[str, Any]:
        """As `Counting`."""
        return {"accumulation": accumulation_of(self._cell), "global_step_at_start": self._base}

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """As `Counting`."""
        before = recorded["accumulation"]
        check_same_training(contents, before, accumulation_of(self._cell))
        left = self._left(contents, before, worlds)
        # When EarlyStopping ends a training, it may put the best weights back, accumulators and counters with them.
        if recorded["ended"] is None:
            self._prove_stored(contents, recorded["global_step_at_start"])
        return left

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """As `Counting`."""
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
        """As `Counting`."""
        self._prove(progress, arrays, self._base)

    def begin_loop(self) -> None:
        """Nothing: the cell counts its calls."""

    def read_ahead(self) -> str | None:
        """Never: `now` gives both counts, which have to agree."""

    def end_epoch(self) -> None:
        """As `Counting`."""
        self._cell.end_epoch()

    def expect_epoch_end(self, last: bool) -> None:
        """As `Counting`."""
        self._cell.expect_epoch_end(last)

    def refuse_open_remainder(self, batches_per_epoch: int) -> None:
        """As `Counting`."""
        counters, delivered = self.now()
        if counters.micro_step == 0 or self._cell.remainder == "carry":
            return
        if counters.first_micro_step // batches_per_epoch != delivered // batches_per_epoch:
            raise ResumeError(
                f'an epoch of {batches_per_epoch} batches ended within a cycle and remainder="{self._cell.remainder}" '
                "was not carried out: call the train cell's end_epoch() after the last micro-step of each epoch, "
                "before the save there"
            )

    def steady_optimizers(self) -> list[nn.Cell]:
        """As `Counting`; none of a subclass whose call may write before or after the fence."""
        own_call = type(self._cell).__call__ is not AccumulationTrainCell.__call__
        return [] if own_call else [self._cell.optimizer]

    def guard(self, fence: Callable[[], None]) -> None:
        """As `Counting`."""
        self._cell.guard(fence)

    def fence(self) -> None:
        """As `Counting`."""
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
            contents.prove(names)  # altered bytes are a corrupt checkpoint, not one of another training
            raise

    def _prove(self, progress: Progress, arrays: Arrays, base: int | None) -> None:
        divisor = self._cell.accumulators[-1].name
        if divisor in arrays and self._cell.normalize == "micro_batches":
            prove_divisor(progress, divisor, float(arrays[divisor].reshape(-1)[0]))
        step = getattr(self._cell.optimizer, "global_step", None)
        if isinstance(step, ms.Parameter):
            prove_updates(progress, int(arrays[step.name].reshape(-1)[0]), base)


class ForeignCounting:
    """Of any other train cell: the batches that were delivered, and what a `CycleAdapter` says, if there is one.

    Args:
        cell: The train cell.
        cycle: Says K and the micro-step; None where every call counts as a cycle.
        optimizers: Of all cells.
    """

    def __init__(self, cell: nn.Cell, cycle: CycleAdapter | None, optimizers: Sequence[nn.Cell]) -> None:
        self._cell = cell
        self._cycle = cycle
        self._optimizers = optimizers
        self._delivered = 0
        self._began: tuple[CycleCounters, list[int]] | None = None
        # On the cell, past nn.Cell's own bookkeeping: whoever restores into it must find the fences of all others.
        self._fences: list[Callable[[], None]] = vars(cell).setdefault(_FENCES, [])
        self._base = global_step_of(cell)

    def deliver(self, batches: int | None) -> None:
        """As `Counting`."""
        self._delivered = self._delivered + 1 if batches is None else batches
        self._fence_if_due()

    def now(self) -> tuple[CycleCounters, int]:
        """As `Counting`."""
        return counters_of(self._cycle, self._delivered), self._delivered

    def record(self) -> dict[str, Any]:
        """As `Counting`."""
        return {"accumulation": None, "global_step_at_start": self._base}

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """As `Counting`; its K is its own, so in another world it has to be that world's already."""
        check_same_training(contents, recorded["accumulation"], None)
        schedule = AccumulationSchedule(accumulation_steps_of(self._cycle))
        if worlds is not None and worlds.before != worlds.now:
            schedule_in(contents, None, schedule, Worlds(worlds.before, worlds.now, first=worlds.now))
        return CycleLeft(check_cycle(contents, None, schedule, may_change=False), schedule)

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """As `Counting`; raises StateMismatchError where the adapter still says something else."""
        self._delivered = progress.batches_delivered
        self._base = recorded["global_step_at_start"]
        check_restored(self._cycle, progress)

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """Nothing: what a foreign cell counts is its own affair, but for its adapter, whom `now` asks."""

    def begin_loop(self) -> None:
        """As `Counting`."""
        self._began = self.now()[0], self._steps()

    def read_ahead(self) -> str | None:
        """As `Counting`, at the first look after a batch was taken: later ones may well have been left out on purpose.

        A single batch is the one that was trained. More were trained if some optimizer counted as many cycles; where
        none counts at all, nobody knows. Without an adapter, one that has not moved yet may be about to.
        """
        if self._began is None or self._delivered == self._began[0].micro_steps:
            return None
        before, steps = self._began
        taken, cycles = self._delivered - before.micro_steps, self.now()[0].cycles - before.cycles
        updates = max((now - then for now, then in zip(self._steps(), steps, strict=True)), default=cycles)
        if taken > 1 and self._cycle is None and updates == 0:
            return None
        self._began = None
        if taken == 1 or updates >= cycles:
            return None
        return (
            f"{taken} batches of resumable() were taken before the first step() or save(), but the optimizers counted "
            f"{updates} updates. If the loop reads ahead, a resume leaves out the batches that it holds: read ahead in "
            "front of resumable() instead. If it adds up gradients or leaves batches out, all is well; say cycle=, or "
            "call manager.step(state) after each batch, and this is not asked again"
        )

    def _steps(self) -> list[int]:
        """What the optimizers count, those of them that do."""
        counts = (getattr(one, name, None) for one in self._optimizers for name in _STEPS)
        return [int(one.asnumpy().reshape(-1)[0]) for one in counts if isinstance(one, ms.Parameter)]

    def end_epoch(self) -> None:
        """Nothing: whether its cycles end there is its own affair."""

    def expect_epoch_end(self, last: bool) -> None:
        """Nothing, for the same reason."""

    def refuse_open_remainder(self, batches_per_epoch: int) -> None:
        """Nothing, for the same reason."""

    def steady_optimizers(self) -> list[nn.Cell]:
        """As `Counting`: those of a cell whose adapter promises it."""
        return optimizers_of([self._cell]) if getattr(self._cycle, "steady_within_cycle", False) else []

    def guard(self, fence: Callable[[], None]) -> None:
        """As `Counting`."""
        if fence not in self._fences:
            self._fences.append(fence)
        self._fence_if_due()

    def fence(self) -> None:
        """As `Counting`."""
        while self._fences:
            self._fences[-1]()  # if it raises, it is still there for the next call
            self._fences.pop()

    def _fence_if_due(self) -> None:
        """Where the next call updates: nobody can get between its micro-step and its update."""
        if self._fences and updates_next(self._cycle):
            self.fence()


def accumulation_of(cell: AccumulationTrainCell) -> dict[str, Any]:
    """How ``cell`` accumulates, as checkpoints record it and as it is compared."""
    return {
        "steps": cell.schedule.recorded(),
        "normalize": cell.normalize,
        "remainder": cell.remainder,
        "clip_norm": cell.clip_norm,
        "loss_scaler": None if cell.loss_scale is None else cell.loss_scale.described(),
    }


def counting_of(
    cell: nn.Cell, optimizers: Sequence[nn.Cell], cycle: CycleAdapter | None, *, may_change_k: bool
) -> Counting:
    """Who counts for ``cell``; ``optimizers`` are all of the training.

    Raises:
        ValueError: If ``cycle`` is given beside an `AccumulationTrainCell`.
        TypeError: If it is no `CycleAdapter`.
    """
    if isinstance(cell, AccumulationTrainCell):
        if cycle is not None:
            raise ValueError("an AccumulationTrainCell counts for itself; leave cycle= out")
        return OwnCounting(cell, may_change_k=may_change_k)
    if cycle is None and isinstance(cell, CycleAdapter):
        cycle = cell
    if cycle is None:
        _hint_at_boost(cell)
        return ForeignCounting(cell, None, optimizers)
    if not isinstance(cycle, CycleAdapter):
        raise TypeError(f"cycle must have accumulation_steps and micro_step, got {type(cycle).__name__}")
    return ForeignCounting(cell, cycle, optimizers)


def _hint_at_boost(cell: nn.Cell) -> None:
    """Not taken as the adapter: a cell that skips it at an overflow would contradict the batches delivered."""
    for name, one in cell.cells_and_names():
        if isinstance(one, GradientAccumulation):
            _log.warning(
                "%s accumulates by boost.GradientAccumulation (%s), and every call counts as a cycle: saves due by "
                "optimizer_steps are due by calls. If each call calls it once, say so: cycle=ckptkit.BoostCycle(it)",
                *(type(cell).__name__, name or "itself"),
            )


def global_step_of(cell: nn.Cell) -> int | None:
    """What the optimizer of ``cell`` counts, if it does."""
    step = getattr(getattr(cell, "optimizer", None), "global_step", None)
    return int(step.asnumpy().reshape(-1)[0]) if isinstance(step, ms.Parameter) else None
