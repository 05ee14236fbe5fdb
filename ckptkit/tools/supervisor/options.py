"""Holds the options of ``ckptkit run``. Pure values, any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ckptkit.manager.heartbeat.record import Phase

LONG = timedelta(hours=1)


@dataclass(frozen=True)
class Options:
    """Says when a life has hung and when there is no other one.

    Attributes:
        lives_without_progress: So many lives in a row that commit nothing new are the last ones.
        hang_after: The least time without a micro-step that is a hang.
        limits: The same for other phases; an hour where there is none.
        grace: Time from SIGTERM to SIGKILL.
        longest_pause: The longest pause between two lives.
    """

    lives_without_progress: int = 3
    hang_after: timedelta = timedelta(minutes=10)
    limits: Mapping[Phase, timedelta] = field(default_factory=dict)
    grace: timedelta = timedelta(seconds=30)
    longest_pause: timedelta = timedelta(minutes=5)

    def limit(self, phase: Phase) -> timedelta:
        """Return how long a phase may go on without a sign; of training without regard to its micro-steps."""
        return self.limits.get(phase, self.hang_after if phase is Phase.TRAINING else LONG)
