"""Records where a training run stands: the counters that name a checkpoint and prove a resume.

Every `Progress` is consistent with itself, so that building one applies the checks of docs/format.md. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

_LARGEST = 10**15  # far above any run, far below what a float64 or an int64 rounds
Count = Annotated[int, Field(ge=0, le=_LARGEST)]


@dataclass(frozen=True)
class Progress:
    """Counts what a run has done between two micro-steps; all counters start at the run's first start.

    Attributes:
        epoch: Zero-based epoch that the next batch belongs to.
        batch: Batches of that epoch already delivered.
        cycles: Cycles ended, including skipped updates and dropped remainders.
        updates: Optimizer updates applied.
        micro_step: Micro-steps done in the running cycle; 0 at a boundary.
        accumulation_steps: K of the running cycle.
        batches_delivered: Batches delivered to training since epoch 0.
        cycle_first_batch: Value of ``batches_delivered`` when the running cycle began.

    Raises:
        ValueError: If they contradict each other.
    """

    # Of documents, pydantic checks the types and limits. Not here: a micro-step makes one of these.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    epoch: Count
    batch: Count
    cycles: Count
    updates: Count
    micro_step: Count
    accumulation_steps: Count
    batches_delivered: Count
    cycle_first_batch: Count

    def __post_init__(self) -> None:
        if self.micro_step >= self.accumulation_steps:
            raise ValueError(f"micro_step {self.micro_step} is not below accumulation_steps {self.accumulation_steps}")
        if self.batches_delivered - self.cycle_first_batch != self.micro_step:
            raise ValueError(
                f"micro_step {self.micro_step} is not batches_delivered {self.batches_delivered} minus "
                f"cycle_first_batch {self.cycle_first_batch}"
            )
        if self.updates > self.cycles:
            raise ValueError(f"updates {self.updates} exceed cycles {self.cycles}")
        if self.batch > self.batches_delivered:
            raise ValueError(f"batch {self.batch} exceeds batches_delivered {self.batches_delivered}")

    @property
    def counts_batches(self) -> bool:
        """Whether each batch counted as an update, as with K = 1, and wherever a foreign train cell does not tell K."""
        return self.accumulation_steps == 1 and self.updates == self.batches_delivered

    @property
    def at_boundary(self) -> bool:
        """Whether a cycle has just ended, so that all accumulators are zero."""
        return self.micro_step == 0


@dataclass(frozen=True)
class ResumePoint:
    """Says where training continues; on a fresh start the numbers are 0 and ``checkpoint`` is None.

    Attributes:
        epoch: Pass it to ``Model.train`` as ``initial_epoch``.
        batch: Batches of that epoch that are already trained.
        optimizer_step: Updates applied.
        micro_step: Micro-steps done in the running cycle.
        batches_delivered: Batches trained since epoch 0.
        complete: Whether nothing is left to train.
        checkpoint: Name of the checkpoint that was applied.
    """

    epoch: int = 0
    batch: int = 0
    optimizer_step: int = 0
    micro_step: int = 0
    batches_delivered: int = 0
    complete: bool = False
    checkpoint: str | None = None

    @classmethod
    def at(cls, progress: Progress, checkpoint: str) -> ResumePoint:
        """Return the resume point for ``progress``."""
        now = progress
        return cls(now.epoch, now.batch, now.updates, now.micro_step, now.batches_delivered, checkpoint=checkpoint)
