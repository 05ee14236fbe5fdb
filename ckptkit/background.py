"""Runs a save beside training: one thread, at the lowest priority, whose outcome is a `SaveHandle`.

Guarantees: what was begun is finished before the interpreter ends, however it ends short of a kill. The thread
has the lowest priority on Linux, where a thread can have one of its own, so that it takes only what training
leaves; threads that it starts inherit that. Any thread may start one; a handle's waiting methods are for the
training thread, because the save may need something of it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from datetime import timedelta

from ckptkit.cost import SaveReport
from ckptkit.run.staged import Staged
from ckptkit.waiting import LongWait

_log = logging.getLogger("ckptkit")
_LOWEST_PRIORITY = 19
_GLANCE_SECONDS = 0.5
_SLICE_SECONDS = 0.005


class SaveHandle:
    """One save under way, in the manner of `concurrent.futures.Future`.

    Args:
        future: Of the save.
        staged: What it writes.
    """

    def __init__(self, future: Future[SaveReport], staged: Staged) -> None:
        self._future = future
        self._staged = staged

    def done(self) -> bool:
        """Whether the save has ended, well or not.

        Gives the writer what it may be waiting for, as far as there is room, so that asking again and again ends.
        """
        if not self._future.done():
            self._staged.advance(1)
        return self._future.done()

    def result(self, timeout: timedelta | None = None) -> str:
        """Wait for the commit and return the checkpoint's name.

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
        return self._future

    def _wait(self, timeout: timedelta | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout.total_seconds()
        size_bytes = sum(shard.size_bytes for shard in self._staged.shards)
        with LongWait("writing the checkpoint", size_bytes) as wait:
            while True:
                left = _GLANCE_SECONDS if until is None else min(_GLANCE_SECONDS, max(0.0, until - time.monotonic()))
                self._staged.advance(1)  # a writer that waits for slices would wait for ever
                if wait_for([self._future], min(left, _SLICE_SECONDS) if self._staged.by_slices else left).done:
                    return
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(
                        f"the save under way has not ended within {timeout}; it goes on in the background"
                    )
                wait.reach(self._staged.cost.streamed_bytes)


def save_in_background(save: Callable[[], SaveReport], staged: Staged) -> SaveHandle:
    """Run ``save`` in a thread of its own.

    Args:
        save: What to run.
        staged: What it writes.
    """
    future: Future[SaveReport] = Future()
    handle = SaveHandle(future, staged)

    process = os.getpid()

    def finish() -> None:
        if os.getpid() == process:  # a forked child has these handlers, but not the thread
            handle.settled()

    def run() -> None:
        lower_priority()
        try:
            report = save()
        except BaseException as error:  # noqa: BLE001 - it is the handle's, whatever it is
            future.set_exception(error)
        else:
            future.set_result(report)
        finally:
            atexit.unregister(finish)

    # A daemon, because the interpreter joins others before it runs exit handlers, and this one may need slices first.
    thread = threading.Thread(target=run, name="ckptkit-writer", daemon=True)
    atexit.register(finish)
    try:
        thread.start()
    except RuntimeError as error:  # the process may have no more threads: a failed save like any other
        atexit.unregister(finish)
        staged.release()
        future.set_exception(error)
    return handle


def lower_priority() -> None:
    """Give the calling thread the lowest priority, where a thread can have one of its own."""
    if sys.platform != "linux":
        return  # elsewhere it would be the priority of the whole process
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
    except OSError as error:
        _log.info("the writer keeps the priority of training: %s", error)
