"""Shows the progress of a long wait: a bar on a terminal, log lines elsewhere.

A short wait shows nothing. The display draws from no random generator, and starts no thread. One thread.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TypeAlias

from typing_extensions import Self

_before = random.getstate()
from rich.console import Console  # noqa: E402 - the first import of rich draws from the global `random`
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402

random.setstate(_before)

_log = logging.getLogger("ckptkit")

_BAR_AFTER = timedelta(seconds=2)
_LINE_EVERY = timedelta(seconds=30)


Countdown: TypeAlias = Callable[[], float]


def countdown(timeout: timedelta | None) -> Countdown:
    """Return a function that gives the seconds left of ``timeout``, which begins now; None never ends."""
    if timeout is None:
        return lambda: math.inf
    until = time.monotonic() + timeout.total_seconds()
    return lambda: max(0.0, until - time.monotonic())


class LongWait:
    """Shows one wait on ``console``, or in log lines if that is no terminal; a context manager."""

    def __init__(
        self,
        what: str,
        total_bytes: int,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._monotonic = monotonic
        self._console = console if console is not None else Console(stderr=True)
        self._begun = self._said = monotonic()
        self._done_bytes = 0
        self._bar: Progress | None = None
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Report ``count`` more bytes done."""
        self.reach(self._done_bytes + count)

    def reach(self, done_bytes: int) -> None:
        """Report ``done_bytes`` bytes done in total."""
        self._done_bytes = done_bytes
        if self._over:
            return
        now = self._monotonic()
        if not self._console.is_terminal:
            self._say(now)
        elif now - self._begun >= _BAR_AFTER.total_seconds():
            self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            columns = (TextColumn(self._what), BarColumn(), DownloadColumn(binary_units=True), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True, auto_refresh=False)
            self._bar.add_task("", total=self._total_bytes)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done_bytes)
        self._bar.refresh()

    def _say(self, now: float) -> None:
        if now - self._said >= _LINE_EVERY.total_seconds():
            self._said = now
            spent = timedelta(seconds=round(now - self._begun))
            _log.info("%s: %d of %d MiB after %s", self._what, self._done_bytes >> 20, self._total_bytes >> 20, spent)
