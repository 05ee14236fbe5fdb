"""Declares how a training is counted, whichever train cell it has; `step_counting` chooses who implements it.

Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import mindspore as ms
from mindspore import nn

from ckptkit.core.accumulation import AccumulationSchedule
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Array
from ckptkit.mindspore.state.reshard import Worlds
from ckptkit.mindspore.train.counters import CycleCounters


class Arrays(Protocol):
    """Gives the bits of tensors by name."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> Array: ...


class CycleLeft(NamedTuple):
    """Holds how a restored run continues.

    Attributes:
        accumulation_steps: K at which its running cycle ends.
        schedule: Schedule that gives K of the cycles after it.
    """

    accumulation_steps: int
    schedule: AccumulationSchedule


class Counting(Protocol):
    """Counts for a `StateManager`; hides whether the train cell is ckptkit's own or a foreign one."""

    def deliver(self, batches: int | None) -> int:
        """Set the number of batches delivered since epoch 0; with None, add one. Return it."""
        ...

    def now(self) -> tuple[CycleCounters, int]:
        """Return the train cell's counters and the number of delivered batches."""
        ...

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint stores of the counting."""
        ...

    def check(self, contents: Contents, recorded: Mapping[str, Any], worlds: Worlds | None) -> CycleLeft:
        """Return how the running cycle ends, or raise if the run cannot continue from ``contents``. Changes nothing.

        Args:
            contents: As they are in this world.
            recorded: By `record`, in the world of the checkpoint.
            worlds: Given if the K of another world may be converted to this one's; otherwise None.
        """
        ...

    def load(self, progress: Progress, recorded: Mapping[str, Any], left: CycleLeft) -> None:
        """Continue from ``progress``, once the parameters have been restored."""
        ...

    def prove(self, progress: Progress, arrays: Arrays) -> None:
        """Raise ResumeError unless the counts in the parameters, given by name, agree with ``progress``."""
        ...

    def tell_updates(self) -> None:
        """Log once that batches are counted as steps although the optimizer counts fewer."""
        ...

    def begin_loop(self) -> None:
        """Start the count of batches taken from `ckptkit.data.resumable`."""
        ...

    def read_ahead(self) -> str | None:
        """Return a warning, once and before the first save, if batches seem to have been taken but not trained."""
        ...

    def end_epoch(self) -> None:
        """End an epoch."""
        ...

    def expect_epoch_end(self, last: bool) -> None:
        """Set whether an epoch ends with the next micro-step."""
        ...

    def refuse_open_remainder(self, batches_per_epoch: int) -> None:
        """Raise ResumeError if an epoch ended within the running cycle and should not have."""
        ...

    def steady_optimizers(self) -> list[nn.Cell]:
        """Return the optimizers whose parameters only the last call of a cycle changes; `guard` fences that call."""
        ...

    def guard(self, fence: Callable[[], None]) -> None:
        """Call ``fence`` before the next update."""
        ...

    def fence(self) -> None:
        """Run the fences now, because code outside the train cell is about to change parameters."""
        ...


def global_step_of(cell: nn.Cell) -> int | None:
    """Return the step count of the optimizer of ``cell``, or None if it does not count."""
    step = getattr(getattr(cell, "optimizer", None), "global_step", None)
    return int(step.asnumpy().reshape(-1)[0]) if isinstance(step, ms.Parameter) else None
