"""Holds the counters of an `AccumulationTrainCell`: its position in the accumulation cycle.

Guarantees: the counters of an instance are consistent with each other. Pure values, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CycleCounters:
    """Holds the position of an `AccumulationTrainCell` between two calls.

    Attributes:
        accumulation_steps: K of the running cycle.
        micro_step: Micro-steps done in the running cycle, 0..K-1; 0 means that the accumulators are zero.
        cycles: Cycles ended since the run's start, including those without an update.
        updates: Optimizer updates applied since the run's start.
        micro_steps: Micro-steps done since the run's start.
        first_micro_step: Value of ``micro_steps`` when the running cycle began.

    Raises:
        ValueError: If the numbers disagree; the message says which.
    """

    accumulation_steps: int
    micro_step: int = 0
    cycles: int = 0
    updates: int = 0
    micro_steps: int = 0
    first_micro_step: int = 0

    def __post_init__(self) -> None:
        if self.accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be at least 1, got {self.accumulation_steps}")
        for name in ("micro_step", "cycles", "updates", "micro_steps", "first_micro_step"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.micro_step >= self.accumulation_steps:
            raise ValueError(f"micro_step {self.micro_step} is not below accumulation_steps {self.accumulation_steps}")
        if self.micro_steps - self.first_micro_step != self.micro_step:
            raise ValueError(
                f"micro_step {self.micro_step} is not micro_steps {self.micro_steps} minus "
                f"first_micro_step {self.first_micro_step}"
            )
        if self.updates > self.cycles:
            raise ValueError(f"updates {self.updates} exceed cycles {self.cycles}")

    @property
    def ends_cycle(self) -> bool:
        """Whether the next micro-step is the last one of the running cycle."""
        return self.micro_step + 1 == self.accumulation_steps

    def after_micro_step(self) -> CycleCounters:
        """Return the counters after the next micro-step, if it does not end the cycle.

        Raises:
            ValueError: If it does; use `after_cycle`.
        """
        return replace(self, micro_step=self.micro_step + 1, micro_steps=self.micro_steps + 1)

    def after_cycle(self, micro_steps: int, *, updated: bool, accumulation_steps: int) -> CycleCounters:
        """Return the counters after the end of the running cycle.

        Args:
            micro_steps: Micro-steps done since the run's start, at the end of the cycle.
            updated: Whether the cycle ended in an update.
            accumulation_steps: K of the next cycle.
        """
        return CycleCounters(
            accumulation_steps=accumulation_steps,
            cycles=self.cycles + 1,
            updates=self.updates + int(updated),
            micro_steps=micro_steps,
            first_micro_step=micro_steps,
        )
