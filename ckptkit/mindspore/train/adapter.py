"""Lets a foreign train cell report its position in its accumulation cycle (`CycleAdapter`).

Guarantees: the adapter's values are compared with the number of delivered batches at every step, and with the
checkpoint before and after a restore; a contradiction raises. Main thread only.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard, runtime_checkable

import mindspore as ms
from mindspore.boost import GradientAccumulation

from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError, StateMismatchError
from ckptkit.mindspore.train.counters import CycleCounters


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
    # and tests/unit/mindspore/train/test_adapter.py fails.

    @property
    def accumulation_steps(self) -> int:
        """``max_accumulation_step`` of the `GradientAccumulation`."""
        return int(self._accumulation._max_accumulation_step)

    @property
    def micro_step(self) -> int:
        """Counter of the `GradientAccumulation`, which the updating call resets."""
        return _whole_number(self._accumulation._accumulation_step)


def reports_cycles(one: object) -> TypeGuard[CycleAdapter]:
    """Return whether an object has what a `CycleAdapter` has, also as parameters of a cell.

    From Python 3.12 on, ``isinstance`` does not see parameters: a cell gives them by ``__getattr__``.
    """
    return hasattr(one, "accumulation_steps") and hasattr(one, "micro_step")


def accumulation_steps_of(adapter: CycleAdapter | None) -> int:
    """Return K of a foreign train cell; without an adapter every call is a cycle."""
    return 1 if adapter is None else _whole_number(adapter.accumulation_steps)


def updates_next(adapter: CycleAdapter | None) -> bool:
    """Return whether the next call ends a cycle; without an adapter every call does."""
    return adapter is None or _whole_number(adapter.micro_step) + 1 >= accumulation_steps_of(adapter)


def counters_of(adapter: CycleAdapter | None, delivered: int) -> CycleCounters:
    """Return the counters of a foreign train cell after ``delivered`` batches.

    Raises:
        ResumeError: If the adapter contradicts ``delivered``.
    """
    if adapter is None:
        return CycleCounters(1, 0, delivered, delivered, delivered, delivered)
    k, micro_step = accumulation_steps_of(adapter), _whole_number(adapter.micro_step)
    cycles, left = divmod(delivered - micro_step, max(k, 1))
    if not 0 <= micro_step < k or cycles < 0 or left:
        raise ResumeError(
            f"the train cell ({type(adapter).__name__}) says that it is at micro-step {micro_step} of cycles of {k}, "
            f"but {delivered} batches were delivered. Call it once per batch and for nothing else, with "
            "state.count_delivered() after each call in a loop of your own; if its cycles differ in length, it is "
            "not a CycleAdapter: leave Training(cycle=...) out and every call counts as one."
        )
    return CycleCounters(k, micro_step, cycles, cycles, delivered, delivered - micro_step)


def check_restored(adapter: CycleAdapter | None, progress: Progress) -> None:
    """Raise StateMismatchError unless the restored cell's micro-step equals the checkpoint's."""
    if adapter is not None and _whole_number(adapter.micro_step) != progress.micro_step:
        raise StateMismatchError(
            f"the checkpoint was taken at micro-step {progress.micro_step} of its cycle, but after the restore the "
            f"train cell ({type(adapter).__name__}) says {_whole_number(adapter.micro_step)}: its counter is not in "
            "the checkpoint. Make it a Parameter of the cell, or give the object that counts by name."
        )


def _whole_number(value: Any) -> int:
    if isinstance(value, ms.Tensor):
        return int(value.asnumpy().reshape(-1)[0])
    return int(value)
