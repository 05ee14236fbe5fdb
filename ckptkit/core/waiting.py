"""Counts down the time that is left, says how long ranks wait for each other, and logs how a long wait goes on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

_log = logging.getLogger("ckptkit")

_LINE_EVERY = timedelta(seconds=30)
_FAREWELL = timedelta(seconds=10)

Countdown: TypeAlias = Callable[[], float]


def countdown(timeout: timedelta | None) -> Countdown:
    """Return a function that gives the seconds left of ``timeout``, which begins now; None never ends."""
    if timeout is None:
        return lambda: math.inf
    until = time.monotonic() + timeout.total_seconds()
    return lambda: max(0.0, until - time.monotonic())


class Patience:
    """Says how long this rank waits for other ranks; any thread may call it."""

    def __init__(self, usual: timedelta) -> None:
        self._usual = usual
        self.is_short = False

    def hurry(self) -> None:
        """Wait at most a few seconds from now on: this rank exits because of an error; others may have died of it."""
        self.is_short = True

    def seconds(self, least: float = 0.0) -> float:
        usual = max(self._usual.total_seconds(), least)
        return min(usual, _FAREWELL.total_seconds()) if self.is_short else usual


class LongWait:
    """Logs how a wait goes on; a short one logs nothing."""

    def __init__(self, what: str, total_bytes: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total_bytes, self._monotonic = what, total_bytes, monotonic
        self._begun = self._said = monotonic()
        self._done_bytes = 0

    def advance(self, count: int) -> None:
        self.reach(self._done_bytes + count)  # two threads at once may lose one of their counts

    def reach(self, done_bytes: int) -> None:
        self._done_bytes = done_bytes
        now = self._monotonic()
        if now - self._said >= _LINE_EVERY.total_seconds():
            self._said = now
            spent = timedelta(seconds=round(now - self._begun))
            _log.info("%s: %d of %d MiB after %s", self._what, done_bytes >> 20, self._total_bytes >> 20, spent)
