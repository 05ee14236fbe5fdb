"""Measures micro-steps and decides whether the running cycle can still end before a save.

Guarantees: an estimate is never smaller than a recent measurement. Without a measurement there is no estimate. Training
thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta

from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT

_LEAST = 8  # micro-steps to remember; with a larger K a whole cycle, so that the update is included
_SAFETY = 1.5


class StepTiming:
    """Measures the durations of the last micro-steps.

    Args:
        monotonic: Gives seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seconds: deque[float] = deque(maxlen=_LEAST)
        self._since: float | None = None

    def pause(self) -> None:
        """Skip the next measurement: something other than a micro-step follows, such as an evaluation."""
        self._since = None
        HEARTBEAT.enter(Phase.EVALUATING)

    def arrive(self, accumulation_steps: int) -> None:
        """Record that a micro-step has ended; it is measured if `depart` began it."""
        if (self._seconds.maxlen or 0) < accumulation_steps:
            self._seconds = deque(self._seconds, maxlen=accumulation_steps)
        if self._since is not None:
            self._seconds.append(self._monotonic() - self._since)
        self._since = None

    def depart(self) -> None:
        """Record that the next micro-step begins."""
        self._since = self._monotonic()

    @property
    def micro_step(self) -> timedelta | None:
        """Duration of the longest recent micro-step; None before the first measurement."""
        return timedelta(seconds=max(self._seconds)) if self._seconds else None


def fits(micro_steps_left: int, micro_step: timedelta | None, save: timedelta | None, left: timedelta) -> bool:
    """Return whether the remaining micro-steps and the saves fit into the time left, with a margin of a half.

    Args:
        micro_steps_left: Micro-steps up to the boundary.
        micro_step: Duration of one; None if unknown.
        save: Duration of everything that has to be written; None if unknown.
        left: Time until the end of the grace.
    """
    if micro_step is None or save is None:
        return False
    return (micro_steps_left * micro_step + save) * _SAFETY <= left
