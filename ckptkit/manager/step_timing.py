"""How fast a training goes, and whether the running cycle can still be ended before a save.

Guarantees: an estimate is never smaller than what was measured lately; what was not measured is no estimate. Training
thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta

_LEAST = 8  # micro-steps that are remembered; with a larger K the whole cycle, whose last one updates
_SAFETY = 1.5


class StepTiming:
    """Durations of the last micro-steps.

    Args:
        monotonic: Gives seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seconds: deque[float] = deque(maxlen=_LEAST)
        self._since: float | None = None

    def pause(self) -> None:
        """What follows is not the next micro-step, such as an evaluation."""
        self._since = None

    def arrive(self, accumulation_steps: int) -> None:
        """A micro-step has ended; it is measured if `depart` began it."""
        if (self._seconds.maxlen or 0) < accumulation_steps:
            self._seconds = deque(self._seconds, maxlen=accumulation_steps)
        if self._since is not None:
            self._seconds.append(self._monotonic() - self._since)
        self._since = None

    def depart(self) -> None:
        """The next micro-step begins."""
        self._since = self._monotonic()

    @property
    def micro_step(self) -> timedelta | None:
        """The longest of the last ones; None before any was measured."""
        return timedelta(seconds=max(self._seconds)) if self._seconds else None


def fits(micro_steps_left: int, micro_step: timedelta | None, save: timedelta | None, left: timedelta) -> bool:
    """Whether so many more micro-steps and then the saves fit into the time that is left, with a margin of a half.

    Args:
        micro_steps_left: Up to the boundary.
        micro_step: How long one takes; None if nobody knows.
        save: How long all that has to be written takes; None if nobody knows.
        left: Until the end of the grace.
    """
    if micro_step is None or save is None:
        return False
    return (micro_steps_left * micro_step + save) * _SAFETY <= left
