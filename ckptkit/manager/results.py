"""What became of the saves of a manager: the one under way, the failures in a row, and what is still to be told.

Guarantees: every save's outcome is taken once; what may not be tolerated reaches the caller, in a job of many ranks at
the next point where all of them meet, because nobody may leave alone. Training thread only.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from ckptkit.core.save_report import SaveReport, SaveTotals
from ckptkit.errors import CkptKitError, SaveFailedError, StaleAttemptError
from ckptkit.manager.background import SaveHandle, account_of, warn_of_failure

_log = logging.getLogger("ckptkit")
_DURATIONS = 8


class SaveResults:
    """Of the saves of one manager.

    Args:
        url: The run root, for messages.
        failures_allowed: How many saves in a row may not fail.
        on_save: Is told of every save that was committed.

    Attributes:
        in_flight: The last save, until its outcome was taken.
        skipped_saves: During how many writes another save was due and not taken.
        totals: What the saves cost in all.
        durations: How long the last committed ones took.
        is_alone: Whether the job has one rank.
        commits: Whether this rank is the one that commits.
        end: What training must end with, in a job of many ranks.
        lost: Number of the last save that this rank could not write its part of, and why.
    """

    def __init__(self, url: str, failures_allowed: int, on_save: Callable[[SaveReport], None] | None) -> None:
        self._url = url
        self._failures_allowed = failures_allowed
        self._on_save = on_save
        self._failures_in_a_row = 0
        self._number = 0
        self._untold: list[SaveReport] = []
        self._skipped_during: SaveHandle | None = None
        self.in_flight: SaveHandle | None = None
        self.skipped_saves = 0
        self.totals = SaveTotals()
        self.durations: deque[timedelta] = deque(maxlen=_DURATIONS)
        self.is_alone = True
        self.commits = True
        self.end: CkptKitError | None = None
        self.lost: tuple[int, str] | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self.in_flight is not None and not self.in_flight.done()

    @property
    def failures_in_a_row(self) -> int:
        """How many of the last saves failed."""
        return self._failures_in_a_row

    def begin(self, number: int, handle: SaveHandle) -> None:
        """The save ``number`` is under way."""
        self._number = number
        self.in_flight = handle

    def skip(self) -> None:
        """A save is due and not taken; counted once per write, since an interval that has passed stays due."""
        if self.in_flight is None or self._skipped_during is not self.in_flight:
            self._skipped_during = self.in_flight
            self.skipped_saves += 1
            self._say_skipped()

    def _say_skipped(self) -> None:
        """At the first, the tenth, the hundredth, ...: where the disk is busy for long, each is no news."""
        if self.skipped_saves == 1:
            _log.info("a save is due and skipped, because the previous one is still being written; others are counted")
        elif re.fullmatch("10+", str(self.skipped_saves)):
            _log.info("%d times a save was due while the one before was still being written", self.skipped_saves)

    def drain(self, timeout: timedelta | None = None) -> None:
        """Wait for the save under way; TimeoutError as `SaveHandle.settled`."""
        if self.in_flight is not None:
            self.in_flight.settled(timeout)

    def tell(self) -> None:
        """Tell ``on_save`` what is new; last of all, since it may raise, and may call the manager."""
        while self._untold and self._on_save is not None:
            self._on_save(self._untold.pop(0))

    def refuse_ended(self) -> None:
        """Raise what training must end with, if there is anything."""
        if self.end is not None:
            raise self.end

    def collect(self, *, tolerate: bool = False) -> None:
        """Take the outcome of a save that has ended.

        Raises:
            SaveFailedError: If as many saves in a row have failed as are tolerated, unless ``tolerate``; one rank only.
            StaleAttemptError: If another process took the run over; one rank only.
        """
        if self.is_alone and isinstance(self.end, StaleAttemptError):
            raise self.end
        if self.in_flight is None or not self.in_flight.done():
            return
        future = self.in_flight.settled()
        self.in_flight = None
        error = future.exception()
        if error is None:
            self._failures_in_a_row = 0
            report = future.result()
            self.totals.add(report)
            self.durations.append(report.took)
            if self.commits and self._on_save is not None:
                self._untold.append(report)
        elif isinstance(error, StaleAttemptError):
            self._end_with(error)
        elif self.commits:
            self._count(error, tolerate=tolerate)
        else:
            self.lost = (self._number, account_of(error))
            warn_of_failure(error, "this rank's part of a save failed: %s; training goes on", account_of(error))

    def _count(self, error: BaseException, *, tolerate: bool) -> None:
        self._failures_in_a_row += 1
        what = f"a background save failed ({self._failures_in_a_row} in a row): {account_of(error)}"
        if not tolerate and self._failures_in_a_row >= self._failures_allowed:
            end = SaveFailedError(
                f"{what.removesuffix('.')}. The last committed checkpoint is untouched: repair {self._url} and start "
                "again"
            )
            end.__cause__ = error
            self._end_with(end)
            warn_of_failure(error, "%s; that is too often, and ends training in all ranks at their next save", what)
            return
        warn_of_failure(error, "%s; training goes on, and the run's last committed checkpoint is untouched", what)

    def _end_with(self, error: CkptKitError) -> None:
        if not self.is_alone:
            self.end = error
            return
        if isinstance(error, StaleAttemptError):
            self.end = error  # for good; a failure is no more once a later save has worked
        raise error
