"""Writes saves one at a time: `SaveHandle` runs one in a thread, `SaveResults` raises its error at a later call.

A save that has begun is finished before the interpreter exits, unless the process is killed; a failure that nobody has
asked for by then is logged. The writer uses only the CPU time that training leaves, except for the final save, and
while a thread waits. In a job of many ranks a failure that may not be tolerated is raised where all ranks meet, because
no rank may leave alone. Any thread may wait for a save; `SaveResults` belongs to the training thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from ckptkit.checkpoint.write import Staged
from ckptkit.core.save_report import SaveReport, SaveTotals
from ckptkit.core.waiting import LongWait, countdown
from ckptkit.core.worker import NoThreadError, Worker, awaited
from ckptkit.errors import CkptKitError, ResumeError, SaveFailedError, StaleAttemptError
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.manager.process import AT_EXIT

_log = logging.getLogger("ckptkit")
_GLANCE_SECONDS = 0.5
_SLICE_SECONDS = 0.005
_DURATIONS = 8
_LONG = timedelta(minutes=10)  # without an end of the save under way, while others are due


class NotEndedError(TimeoutError):
    """Says that what was waited for has not ended in time; any other TimeoutError is that of the user's code."""


class SaveHandle:
    """Represents one save under way, similar to `concurrent.futures.Future`.

    Args:
        staged: The state that the save writes; None if it only confirms a commit that exists.
    """

    def __init__(self, staged: Staged | None) -> None:
        self._staged = staged
        self._outcome: SaveReport | BaseException | None = None  # set in one step, whatever a signal interrupts
        self._worker: Worker | None = None

    @property
    def writes(self) -> bool:
        """Whether the save writes a checkpoint; otherwise it only confirms one."""
        return self._staged is not None

    def done(self) -> bool:
        """Return whether the save has ended, successfully or not.

        Each call also gives the writer the slices that it may be waiting for, as far as there is room, so that a loop
        over `done` terminates.
        """
        if self._outcome is None:
            self._advance()
        return self.has_ended()

    def result(self, timeout: timedelta | None = None) -> str:
        """Wait for the commit and return the checkpoint's name.

        In a job of many ranks, a rank above 0 waits until its own part is durable. Rank 0 knows whether all parts were
        committed; the other ranks learn it at the next save.

        Raises:
            TimeoutError: If the save has not ended within ``timeout``; the save goes on.
            CkptKitError: The error that made the save fail.
        """
        return self.report(timeout).checkpoint

    def exception(self, timeout: timedelta | None = None) -> BaseException | None:
        """Wait for the end and return the save's error or None; raises TimeoutError as `result` does."""
        self._wait(timeout)
        AT_EXIT.discard(self.finish)
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def report(self, timeout: timedelta | None = None) -> SaveReport:
        """Wait for the commit and return what it cost; raises as `result` does."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert isinstance(self._outcome, SaveReport)  # noqa: S101 - it is no error
        return self._outcome

    def end(self, outcome: SaveReport | BaseException) -> None:
        """Set the outcome, from the code that runs the save."""
        self._outcome = outcome
        if isinstance(outcome, SaveReport):
            AT_EXIT.discard(self.finish)

    def start(self, write: Callable[[], None], *, gives_way: bool = True) -> bool:
        """Run ``write``, which calls `end`, in a thread that ``gives_way`` to training; return whether it runs.

        The exit waits for it. If no thread can be started, that is a failed save like any other.
        """
        self._worker = Worker(write, "ckptkit-writer", gives_way=gives_way)
        AT_EXIT.add(self.finish)
        try:
            self._worker.start()
        except (NoThreadError, MemoryError) as error:
            return not self.withdraw(error)
        return True

    def withdraw(self, error: BaseException) -> bool:
        """End a save that has not begun, so that it never does, and return True; leave one that runs or has ended.

        Call this where an error, such as Ctrl-C, may have arrived before, in or after the start of the worker. That no
        thread can be started is the failure of this save.
        """
        if self._outcome is not None or not (self._worker is None or self._worker.take_back()):
            return False
        if not isinstance(error, NoThreadError | MemoryError):
            cause, error = error, SaveFailedError("the save was interrupted before it began")
            error.__cause__ = cause
        self._fail(error)
        return True

    def finish(self) -> None:
        """At interpreter exit, wait for the end, and log a failure that nobody has asked for."""
        self._wait(None)
        if isinstance(self._outcome, BaseException):
            _log.warning(
                "the last background save failed, and the program ended without checking its result: %s. What was "
                "committed before is untouched",
                account_of(self._outcome).rstrip("."),
            )

    def _fail(self, error: BaseException) -> None:
        """End a save that nobody writes."""
        AT_EXIT.discard(self.finish)
        if self._staged is not None:
            self._staged.release()
        self._outcome = error

    def _wait(self, timeout: timedelta | None) -> None:
        if self._outcome is not None:
            return
        staged = self._staged
        seconds_left = countdown(timeout)
        size_bytes = 0 if staged is None else sum(shard.size_bytes for shard in staged.shards)
        wait = LongWait("writing the checkpoint", size_bytes)
        glance = _SLICE_SECONDS if staged is not None and staged.by_slices else _GLANCE_SECONDS
        with awaited():
            while True:
                if not self._advance():  # otherwise a writer that needs slices would wait forever
                    raise ResumeError(
                        "the save under way cannot be waited for here: its fence, or a copy for it, is in progress in "
                        "this thread, below a signal handler. Set a flag there, and wait when that call has returned"
                    )
                if self._worker is not None:
                    self._worker.wait(min(glance, seconds_left()))
                if self.has_ended():
                    return
                if not seconds_left():
                    raise NotEndedError(
                        f"the save under way has not ended within {timeout}; it continues in the background"
                    )
                wait.reach(0 if staged is None else staged.cost.streamed_bytes)

    def _advance(self) -> bool:
        return self._staged is None or self._staged.advance(1)

    def has_ended(self) -> bool:
        """Return whether there is an outcome; a thread that ended without one, or never begins, becomes an error."""
        # Without a worker: Ctrl-C arrived before it was made, so nobody else ends the save.
        is_gone = self._worker is None or self._worker.has_ended or self._worker.is_lost
        if is_gone and self._outcome is None:  # in this order: a worker sets the outcome before it ends
            is_begun = not self.withdraw(RuntimeError("its thread was never started"))
            if is_begun and self._outcome is None:
                self._fail(
                    SaveFailedError(
                        "the thread that writes the checkpoint is not in this process: it died, or this process was "
                        "forked from the training process. Only the training process can wait for the save"
                    )
                )
        return self._outcome is not None


class SaveResults:
    """Takes the outcome of each of a manager's saves, once; ``failures_allowed`` in a row end training."""

    def __init__(
        self,
        url: str,
        failures_allowed: int,
        on_save: Callable[[SaveReport], None] | None,
        rank_sync: RankSync,
        *,
        newest: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._url, self._failures_allowed, self._on_save = url, failures_allowed, on_save
        self._is_alone, self._commits, self._newest = rank_sync.is_alone, rank_sync.leads, newest
        self._failures_in_a_row = self._number = 0
        self.unreported: list[SaveReport] = []  # to ``on_save``
        self._skipped_during: SaveHandle | None = None
        self._warn_after = _LONG
        self.in_flight: SaveHandle | None = None  # until its outcome is taken
        self.skipped_saves = 0  # writes during which another save was due and skipped
        self.totals = SaveTotals()
        self.durations: deque[timedelta] = deque(maxlen=_DURATIONS)  # of the last committed saves
        self.stall_seconds: deque[float] = deque(maxlen=_DURATIONS)  # of the same saves
        self.end: CkptKitError | None = None  # in a job of many ranks, the error with which training must end
        self.lost: tuple[int, str] | None = None  # number of the last save whose part was not written, and the reason

    @property
    def mean_stall_seconds(self) -> float:
        return max(0.0, sum(self.stall_seconds) / max(1, len(self.stall_seconds)))

    @property
    def busy(self) -> bool:
        return self.in_flight is not None and not self.in_flight.done()

    def begin(self, number: int, handle: SaveHandle) -> None:
        self._number, self.in_flight = number, handle

    def skip(self, lasted: timedelta) -> None:
        """Count a skipped save, once per write: an interval that has passed stays due.

        A write that does not end, and has ``lasted`` so long, is a warning, again and again: training goes on without
        checkpoints.
        """
        if self._skipped_during is not self.in_flight or self.in_flight is None:
            self._skipped_during = self.in_flight
            self._warn_after = max(_LONG, 3 * max(self.durations, default=timedelta()))
            self.skipped_saves += 1
            if self.skipped_saves == 1:
                _log.info(
                    "a save is due and skipped, because the previous one is still being written; later skips are "
                    "counted"
                )
        if lasted >= self._warn_after:
            self._warn_after = 2 * lasted
            _log.warning(
                "the save under way at %s has not ended in %s, and no other can begin: training continues without "
                "new checkpoints. Check whether the storage answers (`ckptkit ls %s`); if it does not, repair it, "
                "or end this process and start again",
                *(self._url, timedelta(seconds=int(lasted.total_seconds())), self._url),
            )

    def drain(self, timeout: timedelta | None = None) -> None:
        """Wait for the save under way; raises TimeoutError as `SaveHandle.exception` does."""
        if self.in_flight is not None:
            with HEARTBEAT.during(Phase.STORAGE):
                self.in_flight.exception(timeout)

    def tell(self) -> None:
        """Call ``on_save`` with the new reports; call this last, because ``on_save`` may raise or call the manager."""
        while self.unreported and self._on_save is not None:
            self._on_save(self.unreported.pop(0))

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
        handle = self.in_flight
        if handle is None or not handle.has_ended():
            return
        error = handle.exception()
        self.in_flight = None
        if error is None:
            self._failures_in_a_row = 0
            if handle.writes:
                report = handle.report()
                self.totals.add(report)
                self.durations.append(report.took)
                self.stall_seconds.append(report.cost.stall_seconds)
                if self._commits and self._on_save is not None:
                    self.unreported.append(report)
        elif isinstance(error, StaleAttemptError):
            self.end = error  # stays, whereas a later successful save cancels a failure
            if self._is_alone:
                raise error
        elif self._commits:
            self._count(error, tolerate=tolerate)
        else:
            self.lost = (self._number, account_of(error))
            warn_of_failure(error, "this rank's part of a save failed: %s; training continues", account_of(error))

    def _count(self, error: BaseException, *, tolerate: bool) -> None:
        self._failures_in_a_row += 1
        left = "the last committed checkpoint is untouched" if self._newest() else "no checkpoint is committed yet"
        what = f"a background save failed ({self._failures_in_a_row} in a row): {account_of(error)}"
        if not tolerate and self._failures_in_a_row >= self._failures_allowed:
            end = SaveFailedError(f"{what.removesuffix('.')}. Repair {self._url} and start again: {left}")
            end.__cause__ = error
            if self._is_alone:
                raise end
            self.end = end
            warn_of_failure(error, "%s; too many saves failed, so training ends in all ranks at their next save", what)
            return
        warn_of_failure(error, "%s; training continues, and %s", what, left)


def warn_of_failure(error: BaseException, message: str, *values: object) -> None:
    """Log a warning about ``error``; the traceback of a ckptkit error goes to DEBUG only.

    The message of a ckptkit error and that of its cause already say what failed, and an outage brings many of them.
    """
    if not isinstance(error, CkptKitError):
        _log.warning(message, *values, exc_info=error)
        return
    _log.warning(message, *values)
    _log.debug("where that failed:", exc_info=error)


def account_of(error: BaseException) -> str:
    """Return the message of ``error``, or its class, and, where it does not repeat it, the message of its cause."""
    cause = error.__cause__
    words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if cause is None or words in str(error):
        return str(error) or type(error).__name__
    return f"{error} ({type(cause).__name__}: {cause})"
