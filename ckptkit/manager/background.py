"""Runs a save in one thread, which gives way to training, and returns a `SaveHandle` for its outcome.

Guarantees: a save that has begun is finished before the interpreter exits, unless the process is killed. A failure that
nobody has asked for by then is logged. The writer and the threads that it starts use only the CPU time that training
leaves, except for the final save, and while a thread waits (`ckptkit.core.worker`). Any thread may start a save, and
wait for one: it then gives the slices that the save needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Generic, TypeVar

from ckptkit.checkpoint.write import Staged
from ckptkit.core.progress_bar import LongWait
from ckptkit.core.save_report import SaveReport
from ckptkit.core.worker import Latch, NoThreadError, Worker, awaited
from ckptkit.errors import CkptKitError, ResumeError, SaveFailedError
from ckptkit.manager.process.at_exit import AT_EXIT

_log = logging.getLogger("ckptkit")
_GLANCE_SECONDS = 0.5
_SLICE_SECONDS = 0.005
_T = TypeVar("_T")


class NotEndedError(TimeoutError):
    """Says that what was waited for has not ended in time; any other TimeoutError is that of the user's code."""


class _Untold:
    """Keeps a save's failure until somebody asks for it, as text: the error would keep the state in memory."""

    def __init__(self) -> None:
        self._message: str | None = None

    def remember(self, error: BaseException) -> None:
        self._message = account_of(error)
        AT_EXIT.add(self.tell)

    def forget(self) -> None:
        if self._message is not None:
            self._message = None
            AT_EXIT.discard(self.tell)

    def tell(self) -> None:
        message, self._message = self._message, None
        if message is not None:
            _log.warning(
                "the last background save failed, and the program ended without checking its result: %s. What was "
                "committed before is untouched",
                message.rstrip("."),
            )


class Outcome(Generic[_T]):
    """Holds the result of a work, or its error, once it has ended; not a `Future`, for the reason that `Latch` gives.

    Attributes:
        error: What made it fail; None before it ends, and if it succeeded.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._results: list[_T] = []
        self._ended = Latch()

    @property
    def is_there(self) -> bool:
        """Whether the work has ended."""
        return self._ended.is_open

    def succeed(self, result: _T) -> None:
        """End with a result."""
        self._results.append(result)
        self._ended.open()

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        self.error = error
        self._ended.open()

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the end."""
        self._ended.wait(seconds)

    def result(self) -> _T:
        """Return the result of a work that has ended, or raise its error."""
        if self.error is not None:
            raise self.error
        return self._results[0]


class SaveHandle:
    """Represents one save under way, similar to `concurrent.futures.Future`.

    Args:
        staged: The state that the save writes; None if it only confirms a commit that exists.
    """

    def __init__(self, staged: Staged | None) -> None:
        self._outcome: Outcome[SaveReport] = Outcome()
        self._staged = staged
        self._worker: Worker | None = None
        self._untold = _Untold()

    @property
    def writes(self) -> bool:
        """Whether the save writes a checkpoint; otherwise it only confirms one."""
        return self._staged is not None

    def done(self) -> bool:
        """Return whether the save has ended, successfully or not.

        Each call also gives the writer the slices that it may be waiting for, as far as there is room, so that a loop
        over `done` terminates.
        """
        if not self._outcome.is_there:
            self._advance()
        return self._has_ended()

    def result(self, timeout: timedelta | None = None) -> str:
        """Wait for the commit and return the checkpoint's name.

        In a job of many ranks, a rank above 0 waits until its own part is durable. Rank 0 knows whether all parts were
        committed; the other ranks learn it at the next save.

        Raises:
            TimeoutError: If the save has not ended within ``timeout``; the save goes on.
            CkptKitError: The error that made the save fail.
        """
        return self.settled(timeout).result().checkpoint

    def exception(self, timeout: timedelta | None = None) -> BaseException | None:
        """Wait for the end and return the save's error or None; raises TimeoutError as `result` does."""
        return self.settled(timeout).error

    def settled(self, timeout: timedelta | None = None) -> Outcome[SaveReport]:
        """Wait for the end and return the outcome; raises TimeoutError as `result` does."""
        if not self._outcome.is_there:
            self._wait(timeout)
        self._untold.forget()
        return self._outcome

    def end(self, outcome: SaveReport | BaseException) -> None:
        """Set the outcome, from the code that runs the save; a failure that nobody asks for is logged at exit."""
        if not isinstance(outcome, BaseException):
            self._outcome.succeed(outcome)
            return
        try:
            self._untold.remember(outcome)  # before the save ends: another thread may ask as soon as it has ended
        finally:
            self._outcome.fail(outcome)

    def start(self, save: Callable[[], SaveReport], *, gives_way: bool = True) -> bool:
        """Run ``save`` in a thread of its own, which ``gives_way`` to training, and return True.

        If no thread can be started, that is a failed save like any other, and the return value is False.
        """
        # Daemon: the interpreter joins other threads before it runs exit handlers, but this one may need slices.
        self._worker = Worker(partial(self._run, save), "ckptkit-writer", gives_way=gives_way)
        AT_EXIT.add(self.finish)
        try:
            self._worker.start()
        except (NoThreadError, MemoryError) as error:
            if self._take_back():
                self.end(error)
                return False
        return True

    def withdraw(self, error: BaseException) -> None:
        """End a save that has not begun, so that it never does; leave one that runs or has ended.

        Call this where an error, such as Ctrl-C, may have arrived before, in or after `start`.
        """
        if self._take_back():
            failed = SaveFailedError("the save was interrupted before it began")
            failed.__cause__ = error
            self._outcome.fail(failed)

    def _take_back(self) -> bool:
        if self._outcome.is_there or not (self._worker is None or self._worker.take_back()):
            return False
        AT_EXIT.discard(self.finish)
        self._release()
        return True

    def _run(self, save: Callable[[], SaveReport]) -> None:
        outcome: SaveReport | BaseException
        try:
            outcome = save()
        except BaseException as error:  # noqa: BLE001 - every error belongs to the handle
            outcome = error
        try:
            self.end(outcome)
        finally:
            AT_EXIT.discard(self.finish)

    def finish(self) -> None:
        """Wait for the end and log a failure that nobody has asked for; runs at interpreter exit."""
        if not self._outcome.is_there:
            self._wait(None)
        self._untold.tell()

    def _wait(self, timeout: timedelta | None) -> None:
        shards = () if self._staged is None else self._staged.shards
        by_slices = self._staged is not None and self._staged.by_slices
        until = None if timeout is None else time.monotonic() + timeout.total_seconds()
        size_bytes = sum(shard.size_bytes for shard in shards)
        with awaited(), LongWait("writing the checkpoint", size_bytes) as wait:
            while True:
                left = _GLANCE_SECONDS if until is None else min(_GLANCE_SECONDS, max(0.0, until - time.monotonic()))
                if not self._advance():  # otherwise a writer that needs slices would wait forever
                    raise ResumeError(
                        "the save under way cannot be waited for here: its fence, or a copy for it, is in progress in "
                        "this thread, below a signal handler. Set a flag there, and wait when that call has returned"
                    )
                self._outcome.wait(min(left, _SLICE_SECONDS) if by_slices else left)
                if self._has_ended():
                    return
                if until is not None and time.monotonic() >= until:
                    raise NotEndedError(
                        f"the save under way has not ended within {timeout}; it continues in the background"
                    )
                wait.reach(0 if self._staged is None else self._staged.cost.streamed_bytes)

    def _advance(self) -> bool:
        return self._staged is None or self._staged.advance(1)

    def _release(self) -> None:
        if self._staged is not None:
            self._staged.release()

    def _has_ended(self) -> bool:
        """Return whether there is an outcome; a thread that ended without one, or never begins, becomes an error."""
        # Without a worker: Ctrl-C arrived before it was made, so nobody else ends the save.
        if not self._outcome.is_there and (self._worker is None or self._worker.is_lost):
            self.withdraw(RuntimeError("its thread was never started"))
            if not self._outcome.is_there:
                AT_EXIT.discard(self.finish)
                self._release()
                self.end(
                    SaveFailedError(
                        "the thread that writes the checkpoint is not in this process: it died, or this process was "
                        "forked from the training process. Only the training process can wait for the save"
                    )
                )
        return self._outcome.is_there


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
    """Return the message of ``error`` and, where it does not repeat it, the message of its cause."""
    cause = error.__cause__
    words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if cause is None or words in str(error):
        return str(error)
    return f"{error} ({type(cause).__name__}: {cause})"
