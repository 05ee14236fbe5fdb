"""Counts the micro-steps of a training: `OwnCounting` by an `AccumulationTrainCell`, else `ForeignCounting`.

Guarantees: the counts in the parameters, in the train cell and of the delivered batches are compared at every save and
before every restore; a disagreement raises. No count is guessed. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

import mindspore as ms
from mindspore import nn
from mindspore.boost import GradientAccumulation

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Array
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.train.call_hooks import Fences
from ckptkit.mindspore.train.cell import AccumulationTrainCell, CycleCounters, optimizers_of
from ckptkit.mindspore.train.restored_k import Worlds, check_cycle, check_same_training, schedule_in

_log = logging.getLogger("ckptkit")

_FENCES = "_ckptkit_fences"
_STEPS = ("global_step", "state_step", "step_t")  # in MindSpore's optimizers, including the experimental ones


@runtime_checkable
class CycleAdapter(Protocol):
    """Reports K and the micro-step of a train cell whose cycles are all K calls long.

    With the number of delivered batches, these two values give the number of ended cycles and reveal contradictions.
    A train cell may have the attributes itself; parameters with one element are allowed. Reading them waits for the
    device, once per micro-step.

    If an attribute ``steady_within_cycle`` is true, it promises that only the last call of a cycle changes the
    parameters of the cell's optimizers. A save then reads them in place until that call begins, instead of copying them
    at once. A false promise gives torn checkpoints.
    """

    @property
    def accumulation_steps(self) -> Any:
        """K, at least 1."""
        ...

    @property
    def micro_step(self) -> Any:
        """Micro-steps done in the running cycle, 0..K-1."""
        ...


class BoostCycle:
    """Implements `CycleAdapter` for a `mindspore.boost.GradientAccumulation` anywhere in the train cell.

    Raises:
        TypeError: If ``accumulation`` is something else.
    """

    steady_within_cycle = True

    def __init__(self, accumulation: GradientAccumulation) -> None:
        if not isinstance(accumulation, GradientAccumulation):
            raise TypeError(f"BoostCycle takes a boost.GradientAccumulation, got {type(accumulation).__name__}")
        self._accumulation = accumulation

    # Both attributes are private; MindSpore has no public ones. If they move, the first step raises AttributeError
    # and tests/unit/mindspore/train/test_micro_steps.py fails.

    @property
    def accumulation_steps(self) -> int:
        """``max_accumulation_step`` of the `GradientAccumulation`."""
        return int(self._accumulation._max_accumulation_step)

    @property
    def micro_step(self) -> int:
        """Counter of the `GradientAccumulation`, which the updating call resets."""
        return _whole_number(self._accumulation._accumulation_step)


class Arrays(Protocol):
    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> Array: ...


class CycleLeft(NamedTuple):
    """How a restored run continues: the K at which its running cycle ends, and the schedule of the cycles after it."""

    accumulation_steps: int
    schedule: AccumulationSchedule


class OwnCounting:
    """Counts for an `AccumulationTrainCell`, which counts its own calls, until batches are counted separately.

    The run began as many updates ago as the cell has counted.
    """

    def __init__(self, cell: AccumulationTrainCell, *, may_change_k: bool) -> None:
        self._cell = cell
        self._may_change_k = may_change_k
        self._delivered: int | None = None
        step = getattr(cell.optimizer, "global_step", None)
        self._step = step if isinstance(step, ms.Parameter) else None
        self.base = None if self._step is None else _whole_number(self._step) - cell.counters.updates

    def deliver(self, batches: int | None) -> int:
        """Set the number of batches delivered since epoch 0; with None, add one. Return it."""
        if batches is not None:
            self._delivered = batches
        else:  # the cell has already counted this batch
            self._delivered = self._cell.counters.micro_steps if self._delivered is None else self._delivered + 1
        return self._delivered

    def now(self) -> tuple[CycleCounters, int]:
        counters = self._cell.counters
        return counters, counters.micro_steps if self._delivered is None else self._delivered

    def record(self) -> dict[str, Any]:
        return {"accumulation": accumulation_of(self._cell), "global_step_at_start": self.base}

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """Return how the running cycle ends, or raise if the run cannot continue from ``contents``. Changes nothing."""
        before = recorded["accumulation"]
        check_same_training(f"the checkpoint {contents.checkpoint}", before, accumulation_of(self._cell))
        left = self._left(contents, before, worlds)
        # When EarlyStopping ends a training, it may restore the best weights, with their accumulators and counters.
        if recorded["ended"] is None:
            self._prove_stored(contents, recorded["global_step_at_start"])
        return left

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
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
        self.base = recorded["global_step_at_start"]

    def prove(self, counts: Progress | CycleCounters, arrays: Arrays) -> None:
        self._prove(counts, arrays, self.base)

    def begin_loop(self) -> None:
        pass

    def read_ahead(self) -> str | None:
        """Return None: `now` gives both counts, which have to agree."""

    def end_epoch(self) -> None:
        self._cell.end_epoch()

    def expect_epoch_end(self, last: bool) -> None:
        self._cell.expect_epoch_end(last)

    def steady_optimizers(self) -> list[nn.Cell]:
        """Return the optimizers whose parameters only the last call of a cycle changes; `guard` fences that call.

        A subclass with its own ``__call__`` has none: it may write before or after the fence.
        """
        own_call = type(self._cell).__call__ is not AccumulationTrainCell.__call__
        return [] if own_call else [self._cell.optimizer]

    def guard(self, fence: Callable[[], None]) -> None:
        self._cell.guard(fence)

    def fence(self) -> None:
        self._cell.fence()

    def _left(self, contents: Contents, before: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        schedule = self._cell.schedule
        if worlds is not None:
            schedule = schedule.given
            fitting = schedule_in(contents, before["steps"], schedule, worlds)
            if fitting is not None:
                return CycleLeft(contents.progress.accumulation_steps, fitting)
        stored = f"the checkpoint {contents.checkpoint}"
        k = check_cycle(stored, contents.progress, before, schedule, may_change=self._may_change_k)
        return CycleLeft(k, schedule)

    def _prove_stored(self, contents: Contents, base: int | None) -> None:
        counters = [self._cell.accumulators[-1].name, *([self._step.name] if self._step is not None else [])]
        names = [name for name in counters if name in contents.entries]
        try:
            self._prove(contents.progress, {name: contents.peek(name) for name in names}, base)
        except ResumeError:
            contents.prove(names)  # altered bytes mean a corrupt checkpoint, not another training
            self._prove(contents.progress, {name: contents.peek(name) for name in names}, base)

    def _prove(self, counts: Progress | CycleCounters, arrays: Arrays, base: int | None) -> None:
        divisor = self._cell.accumulators[-1].name
        if divisor in arrays and self._cell.normalize == "micro_batches":
            counted = float(arrays[divisor].reshape(-1)[0])
            if counted != counts.micro_step:
                raise ResumeError(
                    f"{divisor} counted {counted:g} micro-steps of the running cycle, but it has "
                    f"{counts.micro_step}. Something else changed the train cell's parameters (such as loading weights "
                    "into the whole cell), so no resume could be exact."
                )
        step = None if self._step is None else int(arrays[self._step.name].reshape(-1)[0])
        # A user's optimizer may have the counter and never change it; then the counter proves nothing.
        if step is not None and base is not None and step != base and step - base != counts.updates:
            raise ResumeError(
                f"the optimizer's global_step went from {base} to {step}, but {counts.updates} updates "
                "were counted. Something else called the optimizer or changed global_step, so no resume could be "
                "exact."
            )


class ForeignCounting:
    """Counts for any other train cell, by the delivered batches and a `CycleAdapter`; as `OwnCounting`.

    Without an adapter, every call counts as a cycle. The cell decides itself whether its cycles end with an epoch.
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
        self._fences: Fences = vars(cell).setdefault(_FENCES, Fences())
        step = getattr(getattr(cell, "optimizer", None), "global_step", None)
        self._base = _whole_number(step) if isinstance(step, ms.Parameter) else None

    def deliver(self, batches: int | None) -> int:
        self._delivered = self._delivered + 1 if batches is None else batches
        self._fence_if_due()
        return self._delivered

    def now(self) -> tuple[CycleCounters, int]:
        """Return the counters and the number of delivered batches; ResumeError if the adapter contradicts it."""
        delivered = self._delivered
        if self._cycle is None:
            return CycleCounters(1, 0, delivered, delivered, delivered, delivered), delivered
        k, micro_step = self._accumulation_steps(), _whole_number(self._cycle.micro_step)
        cycles, left = divmod(delivered - micro_step, max(k, 1))
        if not 0 <= micro_step < k or cycles < 0 or left:
            raise ResumeError(
                f"the train cell ({type(self._cycle).__name__}) says that it is at micro-step {micro_step} of cycles "
                f"of {k}, but {delivered} batches were delivered. Call it once per batch and for nothing else, with "
                "state.count_delivered() after each call in a loop of your own; if its cycles differ in length, it is "
                "not a CycleAdapter: leave Training(cycle=...) out and every call counts as one."
            )
        return CycleCounters(k, micro_step, cycles, cycles, delivered, delivered - micro_step), delivered

    def record(self) -> dict[str, Any]:
        return {"accumulation": None, "global_step_at_start": self._base}

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """See `OwnCounting`. The cell determines K itself, so in another world K must already be that world's."""
        stored = f"the checkpoint {contents.checkpoint}"
        check_same_training(stored, recorded["accumulation"], None)
        schedule = AccumulationSchedule(self._accumulation_steps())
        if worlds is not None and worlds.before != worlds.now:
            schedule_in(contents, None, schedule, Worlds(worlds.before, worlds.now, first=worlds.now))
        return CycleLeft(check_cycle(stored, contents.progress, None, schedule, may_change=False), schedule)

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """See `OwnCounting`; raises StateMismatchError if the adapter contradicts the checkpoint."""
        self._delivered = progress.batches_delivered
        self._base = recorded["global_step_at_start"]
        if self._cycle is not None and _whole_number(self._cycle.micro_step) != progress.micro_step:
            raise StateMismatchError(
                f"the checkpoint was taken at micro-step {progress.micro_step} of its cycle, but after the restore the "
                f"train cell ({type(self._cycle).__name__}) says {_whole_number(self._cycle.micro_step)}: its counter "
                "is not in the checkpoint. Make it a Parameter of the cell, or give the object that counts by name."
            )

    def prove(self, counts: Progress, arrays: Arrays) -> None:
        """Do nothing: ckptkit does not know a foreign cell's counters. `now` asks the adapter."""

    def begin_loop(self) -> None:
        self._began = self.now()[0], self._counts()

    def read_ahead(self) -> str | None:
        """Return a warning, once and before the first save, if batches seem to have been taken but not trained.

        Only the first call after a taken batch decides; later, a loop may skip batches on purpose. A single batch is
        the one that was trained. Several batches were trained if some optimizer counted as many cycles. If no optimizer
        counts, nothing is reported. Without an adapter, an optimizer that has not counted yet may still do so.
        """
        if self._began is None or self._delivered == self._began[0].micro_steps:
            return None
        before, counts = self._began
        taken, cycles = self._delivered - before.micro_steps, self.now()[0].cycles - before.cycles
        updates = max((now - then for now, then in zip(self._counts(), counts, strict=True)), default=cycles)
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
        pass

    def expect_epoch_end(self, last: bool) -> None:
        pass

    def steady_optimizers(self) -> list[nn.Cell]:
        """Return the optimizers of a cell whose adapter promises that only the last call of a cycle changes them."""
        return optimizers_of([self._cell]) if getattr(self._cycle, "steady_within_cycle", False) else []

    def guard(self, fence: Callable[[], None]) -> None:
        self._fences.add(fence)
        self._fence_if_due()

    def fence(self) -> None:
        self._fences.run()

    def _accumulation_steps(self) -> int:
        return 1 if self._cycle is None else _whole_number(self._cycle.accumulation_steps)

    def _counts(self) -> list[int]:
        return [*map(_whole_number, self._counters)]

    def _fence_if_due(self) -> None:
        """Run the fences if the next call updates: nothing can run between that call's micro-step and its update."""
        if not self._fences:
            return
        if self._cycle is None or _whole_number(self._cycle.micro_step) + 1 >= self._accumulation_steps():
            self.fence()


Counting: TypeAlias = OwnCounting | ForeignCounting


def counting_of(
    cell: nn.Cell, cells: Sequence[nn.Cell], cycle: CycleAdapter | None = None, *, may_change_k: bool = False
) -> Counting:
    if isinstance(cell, AccumulationTrainCell):
        if cycle is not None:
            raise ValueError("an AccumulationTrainCell counts for itself; leave Training(cycle=...) out")
        return OwnCounting(cell, may_change_k=may_change_k)
    if cycle is None and _reports_cycles(cell):
        cycle = cell
    if cycle is None:
        _hint_at_boost(cell)
    elif not _reports_cycles(cycle):
        raise TypeError(f"cycle must have accumulation_steps and micro_step, got {type(cycle).__name__}")
    return ForeignCounting(cell, cells, cycle)


def accumulation_of(cell: AccumulationTrainCell) -> dict[str, Any]:
    """Return how ``cell`` accumulates, in the form that checkpoints record and compare."""
    return {
        "steps": cell.schedule.recorded(),
        "normalize": cell.normalize,
        "remainder": cell.remainder,
        "clip_norm": cell.clip_norm,
        "loss_scaler": None if cell.loss_scale is None else cell.loss_scale.described(),
    }


def _reports_cycles(cell: object) -> TypeGuard[CycleAdapter]:
    # From Python 3.12 on, ``isinstance`` does not see parameters: a cell gives them by ``__getattr__``.
    return hasattr(cell, "accumulation_steps") and hasattr(cell, "micro_step")


def _hint_at_boost(cell: nn.Cell) -> None:
    # Not used as the adapter: a cell that skips it at an overflow would contradict the batches delivered.
    for name, inner in cell.cells_and_names():
        if isinstance(inner, GradientAccumulation):
            _log.warning(
                "%s accumulates by boost.GradientAccumulation (%s), and every call counts as a cycle: saves due by "
                "optimizer_steps are due by calls. If each call of the train cell calls it once, declare it: "
                "Training(cycle=ckptkit.BoostCycle(it))",
                *(type(cell).__name__, name or "itself"),
            )


def _whole_number(value: Any) -> int:
    return int(value.asnumpy().reshape(-1)[0]) if isinstance(value, ms.Tensor) else int(value)
