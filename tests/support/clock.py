"""Clocks that tests move."""

import functools
import itertools
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone


def clock_of_calls() -> Callable[[], float]:
    """A monotonic clock that is a millisecond later at each call.

    Whether a commit is followed by a file of events depends on the time that went by, and so do the calls of a save.
    Where calls are counted in one run and struck in the next, they must be the same ones on a slow machine.
    """
    return functools.partial(next, itertools.count(0.0, 0.001))


class Clock:
    """The time that ``real`` gives, and the time that was waited for, which passes at once."""

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real = real
        self._waited_seconds = 0.0

    def __call__(self) -> float:
        return self._real() + self._waited_seconds

    def wait(self, seconds: float) -> None:
        self._waited_seconds += seconds


class Manual:
    """Stands still, but for what a test lets pass."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now  # seconds

    def __call__(self) -> float:
        return self.now

    def time_of_day(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.now)
