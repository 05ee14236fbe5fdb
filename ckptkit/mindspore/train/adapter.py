"""`CycleAdapter`: how a train cell that is not ckptkit's says where it stands in its accumulation cycle.

Guarantees: what an adapter says is compared with the batches delivered at every step, and with the checkpoint
before and after a restore; a contradiction raises. Main thread only.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import mindspore as ms
from mindspore.boost import GradientAccumulation

from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.train.counters import CycleCounters


@runtime_checkable
class CycleAdapter(Protocol):
    """Says K and the micro-step of a train cell whose cycles are all K calls long.

    These two are enough: with the batches delivered they give the cycles that have ended, and whether the three
    agree. A train cell may have the attributes itself; parameters with one element will do. Reading them waits
    for the device, once per micro-step.

    An attribute ``steady_within_cycle`` that is true promises that nothing changes the parameters of the cell's
    optimizers but the last call of a cycle. Then a save reads them in place until that call begins, instead of copying
    them at once. A false promise gives torn checkpoints.
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
    """`CycleAdapter` of a `mindspore.boost.GradientAccumulation`, wherever it is in the train cell.

    Raises:
        TypeError: If ``accumulation`` is something else.
    """

    steady_within_cycle = True

    def __init__(self, accumulation: GradientAccumulation) -> None:
        if not isinstance(accumulation, GradientAccumulation):
            raise TypeError(f"BoostCycle takes a boost.GradientAccumulation, got {type(accumulation).__name__}")
        self._accumulation = accumulation

    # Both private, and nothing else says them. Should they move, AttributeError says so at the first step, and
    # tests/with_mindspore/test_adapter.py fails.

    @property
    def accumulation_steps(self) -> int:
        """Its ``max_accumulation_step``."""
        return int(self._accumulation._max_accumulation_step)

    @property
    def micro_step(self) -> int:
        """Its counter, which it resets in the call that updates."""
        return _whole_number(self._accumulation._accumulation_step)


def accumulation_steps_of(adapter: CycleAdapter | None) -> int:
    """K of a foreign train cell; without an adapter every call is a cycle."""
    return 1 if adapter is None else _whole_number(adapter.accumulation_steps)


def updates_next(adapter: CycleAdapter | None) -> bool:
    """Whether the next call ends a cycle; without an adapter every call does."""
    return adapter is None or _whole_number(adapter.micro_step) + 1 >= accumulation_steps_of(adapter)


def counters_of(adapter: CycleAdapter | None, delivered: int) -> CycleCounters:
    """Where a foreign train cell stands after ``delivered`` batches.

    Raises:
        ResumeError: If what the adapter says contradicts that.
    """
    if adapter is None:
        return CycleCounters(1, 0, delivered, delivered, delivered, delivered)
    k, micro_step = accumulation_steps_of(adapter), _whole_number(adapter.micro_step)
    cycles, left = divmod(delivered - micro_step, max(k, 1))
    if not 0 <= micro_step < k or cycles < 0 or left:
        raise ResumeError(
            f"the train cell ({type(adapter).__name__}) says that it is at micro-step {micro_step} of cycles of {k}, "
            f"but {delivered} batches were delivered. Call it once per batch and for nothing else, with "
            "state.count_delivered() after each call in a loop of your own; if its cycles differ in length, it is no "
            "CycleAdapter: leave cycle= out and every call counts as one."
        )
    return CycleCounters(k, micro_step, cycles, cycles, delivered, delivered - micro_step)


def check_restored(adapter: CycleAdapter | None, progress: Progress) -> None:
    """Raise StateMismatchError unless the restored cell says what the checkpoint says."""
    if adapter is not None and _whole_number(adapter.micro_step) != progress.micro_step:
        raise StateMismatchError(
            f"the checkpoint was taken at micro-step {progress.micro_step} of its cycle, but after the restore the "
            f"train cell ({type(adapter).__name__}) says {_whole_number(adapter.micro_step)}: its counter is in no "
            "checkpoint. Make it a Parameter of the cell, or give the object that counts by name."
        )


def _whole_number(value: Any) -> int:
    if isinstance(value, ms.Tensor):
        return int(value.asnumpy().reshape(-1)[0])
    return int(value)
