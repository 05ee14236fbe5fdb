"""Runs a save beside training: one thread, at the lowest priority, whose outcome is a `SaveHandle`.

Guarantees: what was begun is finished before the interpreter ends, however it ends short of a kill, and a failure that
nobody has asked for by then is logged. The thread has the lowest priority on Linux, where a thread can have one of its
own, so that it takes only what training leaves; threads that it starts inherit that. Any thread may start one; a
handle's waiting methods are for the training thread, because the save may need something of it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from datetime import timedelta

from ckptkit.checkpoint.staged import Staged
from ckptkit.core.progress_bar import LongWait
from ckptkit.core.save_report import SaveReport
from ckptkit.errors import CkptKitError, SaveFailedError
from ckptkit.manager.at_exit import AT_EXIT

_log = logging.getLogger("ckptkit")
_LOWEST_PRIORITY = 19
_GLANCE_SECONDS = 0.5
_SLICE_SECONDS = 0.005


class _Untold:
    """The failure of a save that nobody has asked for, as text: the error itself would keep the state in memory."""

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
                "the last save in the background failed, and the program ended without asking for it: %s. The run's "
                "last committed checkpoint is untouched",
                message,
            )


class SaveHandle:
    """One save under way, in the manner of `concurrent.futures.Future`.

    Args:
        future: Of the save.
        staged: What it writes; None if it has ended.
    """

    def __init__(self, future: Future[SaveReport], staged: Staged | None) -> None:
        self._future = future
        self._staged = staged
        self._thread: threading.Thread | None = None
        self._untold = _Untold()

    @classmethod
    def ended(cls, report: SaveReport) -> SaveHandle:
        """One that needed no writing, because the checkpoint was there."""
        future: Future[SaveReport] = Future()
        future.set_result(report)
        return cls(future, None)

    def done(self) -> bool:
        """Whether the save has ended, well or not.

        Gives the writer what it may be waiting for, as far as there is room, so that asking again and again ends.
        """
        if self._staged is not None and not self._future.done():
            self._staged.advance(1)
        return self._has_ended()

    def result(self, timeout: timedelta | None = None) -> str:
        """Wait for the commit and return the checkpoint's name.

        In a rank above 0 of a job of many it waits for this rank's part, which is durable then; whether all parts were
        committed is known to rank 0, and to the others at the next save.

        Raises:
            TimeoutError: If it has not ended within ``timeout``; it goes on.
            CkptKitError: Whatever made the save fail.
        """
        return self.settled(timeout).result().checkpoint

    def exception(self, timeout: timedelta | None = None) -> BaseException | None:
        """Wait for the end and return what made the save fail, or None; TimeoutError as in `result`."""
        return self.settled(timeout).exception()

    def settled(self, timeout: timedelta | None = None) -> Future[SaveReport]:
        """The future, once it has ended; TimeoutError as in `result`."""
        if not self._future.done():
            self._wait(timeout)
        self._untold.forget()
        return self._future

    def end(self, outcome: SaveReport | BaseException) -> None:
        """Give the save its outcome, by whoever runs it; a failure that nobody asks for is logged at the end."""
        if not isinstance(outcome, BaseException):
            self._future.set_result(outcome)
            return
        try:
            self._untold.remember(outcome)  # first: who sees that it has ended may ask at once
        finally:
            self._future.set_exception(outcome)

    def run_in(self, thread: threading.Thread) -> None:
        """Start ``thread``, which is to give the save its outcome; RuntimeError if there can be none."""
        thread.start()
        self._thread = thread

    def finish(self) -> None:
        """Wait for the end and log it if it is a failure that nobody has asked for; when the interpreter ends."""
        if not self._future.done():
            self._wait(None)
        self._untold.tell()

    def _wait(self, timeout: timedelta | None) -> None:
        staged = self._staged
        assert staged is not None  # noqa: S101 - it has not ended
        until = None if timeout is None else time.monotonic() + timeout.total_seconds()
        size_bytes = sum(shard.size_bytes for shard in staged.shards)
        with LongWait("writing the checkpoint", size_bytes) as wait:
            while True:
                left = _GLANCE_SECONDS if until is None else min(_GLANCE_SECONDS, max(0.0, until - time.monotonic()))
                staged.advance(1)  # a writer that waits for slices would wait for ever
                wait_for([self._future], min(left, _SLICE_SECONDS) if staged.by_slices else left)
                if self._has_ended():
                    return
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(
                        f"the save under way has not ended within {timeout}; it goes on in the background"
                    )
                wait.reach(staged.cost.streamed_bytes)

    def _has_ended(self) -> bool:
        """Whether there is an outcome; that of a thread that is gone without one is an error."""
        is_gone = self._thread is not None and not self._thread.is_alive()  # first: it gives the outcome and then ends
        if is_gone and not self._future.done():
            assert self._staged is not None  # noqa: S101 - a thread writes it
            self._staged.release()
            self.end(
                SaveFailedError(
                    "the thread that writes the checkpoint is not in this process: it died, or this process was forked "
                    "off from the one that trains, which alone can wait for the save"
                )
            )
        return self._future.done()


def save_in_background(save: Callable[[], SaveReport], staged: Staged) -> SaveHandle:
    """Run ``save`` in a thread of its own.

    Args:
        save: What to run.
        staged: What it writes.
    """
    handle = SaveHandle(Future(), staged)

    def run() -> None:
        outcome: SaveReport | BaseException
        try:
            lower_priority()
            outcome = save()
        except BaseException as error:  # noqa: BLE001 - it is the handle's, whatever it is
            outcome = error
        try:
            handle.end(outcome)
        finally:
            AT_EXIT.discard(handle.finish)

    AT_EXIT.add(handle.finish)
    try:
        # A daemon: the interpreter joins others before it runs exit handlers, and this one may need slices first.
        handle.run_in(threading.Thread(target=run, name="ckptkit-writer", daemon=True))
    except (RuntimeError, MemoryError) as error:  # the process may have no more threads: a failed save like any other
        AT_EXIT.discard(handle.finish)
        staged.release()
        handle.end(error)
    return handle


def warn_of_failure(error: BaseException, message: str, *values: object) -> None:
    """Log a warning about ``error`` with its traceback, which an error of ckptkit's own has at DEBUG only.

    Where those come from is no news: their message and their cause's say it, and an outage brings many of them.
    """
    if not isinstance(error, CkptKitError):
        _log.warning(message, *values, exc_info=error)
        return
    _log.warning(message, *values)
    _log.debug("where that failed:", exc_info=error)


def account_of(error: BaseException) -> str:
    """The message of ``error``, and that of its cause where it does not repeat it."""
    cause = error.__cause__
    words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    if cause is None or words in str(error):
        return str(error)
    return f"{error} ({type(cause).__name__}: {cause})"


def lower_priority() -> None:
    """Give the calling thread the lowest priority, where a thread can have one of its own."""
    if sys.platform != "linux":
        return  # elsewhere it would be the priority of the whole process
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    except OSError as error:
        _log.info("the writer keeps the priority of training: %s", error)
