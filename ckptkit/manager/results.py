"""Tracks the outcomes of a manager's saves: the one under way, failures in a row, and reports not yet delivered.

Guarantees: the outcome of every save is taken once. A failure that may not be tolerated reaches the caller; in a job of
many ranks at the next point where all ranks meet, because no rank may leave alone. Training thread only.
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
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT

_log = logging.getLogger("ckptkit")
_DURATIONS = 8
_LONG = timedelta(minutes=10)  # without an end of the save under way, while others are due


class SaveResults:
    """Tracks the outcomes of one manager's saves.

    Args:
        url: The run root, for messages.
        failures_allowed: Training ends at this many consecutive failed saves.
        on_save: Called with the report of every committed save.
        is_alone: Whether the job has one rank.
        commits: Whether this rank commits.
        newest: Returns the newest checkpoint of the run, if there is one.

    Attributes:
        in_flight: The last save, until its outcome is taken.
        skipped_saves: Number of writes during which another save was due and skipped.
        totals: Total cost of the saves.
        durations: Durations of the last committed saves.
        end: In a job of many ranks, the error with which training must end.
        lost: Number of the last save whose part this rank could not write, and the reason.
    """

    def __init__(
        self,
        url: str,
        failures_allowed: int,
        on_save: Callable[[SaveReport], None] | None,
        *,
        is_alone: bool = True,
        commits: bool = True,
        newest: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._url = url
        self._failures_allowed = failures_allowed
        self._on_save = on_save
        self._is_alone = is_alone
        self._commits = commits
        self._newest = newest
        self._failures_in_a_row = 0
        self._number = 0
        self._untold: list[SaveReport] = []
        self._skipped_during: SaveHandle | None = None
        self._tell_after = _LONG
        self.in_flight: SaveHandle | None = None
        self.skipped_saves = 0
        self.totals = SaveTotals()
        self.durations: deque[timedelta] = deque(maxlen=_DURATIONS)
        self.end: CkptKitError | None = None
        self.lost: tuple[int, str] | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self.in_flight is not None and not self.in_flight.done()

    def begin(self, number: int, handle: SaveHandle) -> None:
        """Record that the save ``number`` is under way."""
        self._number = number
        self.in_flight = handle

    def skip(self, lasted: timedelta) -> None:
        """Count a skipped save, once per write: an interval that has passed stays due.

        A write that does not end is a warning, again and again: training goes on without checkpoints.

        Args:
            lasted: Time since the save under way began.
        """
        if self.in_flight is None or self._skipped_during is not self.in_flight:
            self._skipped_during = self.in_flight
            self._tell_after = max(_LONG, 3 * max(self.durations, default=timedelta()))
            self.skipped_saves += 1
            self._say_skipped()
        if lasted >= self._tell_after:
            self._tell_after = 2 * lasted
            _log.warning(
                "the save under way at %s has not ended in %s, and no other can begin: training continues without "
                "new checkpoints. Check whether the storage answers (`ckptkit ls %s`); if it does not, repair it, "
                "or end this process and start again",
                *(self._url, timedelta(seconds=int(lasted.total_seconds())), self._url),
            )

    def _say_skipped(self) -> None:
        """Log the first, tenth, hundredth, ... skipped save, so that a busy disk does not flood the log."""
        if self.skipped_saves == 1:
            _log.info(
                "a save is due and skipped, because the previous one is still being written; later skips are counted"
            )
        elif re.fullmatch("10+", str(self.skipped_saves)):
            _log.info("%d saves were due while the previous one was still being written", self.skipped_saves)

    def drain(self, timeout: timedelta | None = None) -> None:
        """Wait for the save under way; raises TimeoutError as `SaveHandle.settled` does."""
        if self.in_flight is not None:
            with HEARTBEAT.during(Phase.STORAGE):
                self.in_flight.settled(timeout)

    def tell(self) -> None:
        """Call ``on_save`` with the new reports; call this last, because ``on_save`` may raise or call the manager."""
        while self._untold and self._on_save is not None:
            self._on_save(self._untold.pop(0))

    def refuse_ended(self) -> None:
        """Raise the error with which training must end, if there is one."""
        if self.end is not None:
            raise self.end

    def forgive(self) -> None:
        """Let a final save be tried whatever failed before; a takeover of the run is final."""
        if isinstance(self.end, SaveFailedError):
            self.end = None

    def collect(self, *, tolerate: bool = False) -> None:
        """Take the outcome of a save that has ended.

        Raises:
            SaveFailedError: If ``failures_allowed`` saves in a row have failed, unless ``tolerate``; one rank only.
            StaleAttemptError: If another process took over the run; one rank only.
        """
        if self._is_alone and isinstance(self.end, StaleAttemptError):
            raise self.end
        if self.in_flight is None or not self.in_flight.done():
            return
        outcome, writes = self.in_flight.settled(), self.in_flight.writes
        self.in_flight = None
        error = outcome.error
        if error is None:
            self._failures_in_a_row = 0
            if writes:
                self._add(outcome.result())
        elif isinstance(error, StaleAttemptError):
            self._end_with(error)
        elif self._commits:
            self._count(error, tolerate=tolerate)
        else:
            self.lost = (self._number, account_of(error))
            warn_of_failure(error, "this rank's part of a save failed: %s; training continues", account_of(error))

    def _add(self, report: SaveReport) -> None:
        self.totals.add(report)
        self.durations.append(report.took)
        if self._commits and self._on_save is not None:
            self._untold.append(report)

    def _count(self, error: BaseException, *, tolerate: bool) -> None:
        self._failures_in_a_row += 1
        left = "the last committed checkpoint is untouched" if self._newest() else "no checkpoint is committed yet"
        what = f"a background save failed ({self._failures_in_a_row} in a row): {account_of(error)}"
        if not tolerate and self._failures_in_a_row >= self._failures_allowed:
            end = SaveFailedError(f"{what.removesuffix('.')}. Repair {self._url} and start again: {left}")
            end.__cause__ = error
            self._end_with(end)
            warn_of_failure(error, "%s; too many saves failed, so training ends in all ranks at their next save", what)
            return
        warn_of_failure(error, "%s; training continues, and %s", what, left)

    def _end_with(self, error: CkptKitError) -> None:
        if not self._is_alone:
            self.end = error
            return
        if isinstance(error, StaleAttemptError):
            self.end = error  # stays, whereas a later successful save cancels a failure
        raise error
