"""Defines `Latch`, which threads wait for: an event that Ctrl-C cannot damage.

Guarantees: whenever Ctrl-C arrives in `Latch.open` or `Latch.wait`, no other thread waits longer than it asked for, and
the latch opens. `threading.Event`, `threading.Condition`, `queue.Queue` and `concurrent.futures.Future` do not promise
that: they are Python code, and Ctrl-C right after their lock was taken leaves it taken, so that the next thread that
needs it waits for ever. Any thread.
"""

from __future__ import annotations

import contextlib
import threading


class Latch:
    """Opens once, and stays open."""

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Lock()  # taken until the latch opens
        self._closed.acquire()

    @property
    def is_open(self) -> bool:
        """Whether the latch is open."""
        return self._is_open

    def open(self) -> None:
        """Open the latch, which wakes the threads that wait; does nothing if it is open."""
        if not self._is_open:
            self._is_open = True
            with contextlib.suppress(RuntimeError):  # another thread has released it meanwhile
                self._closed.release()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until the latch is open; return whether it is."""
        if not self._is_open and self._closed.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX)):
            # Ctrl-C before this line leaves the lock taken: others that wait see the open latch when their time is up.
            with contextlib.suppress(RuntimeError):  # a thread that opens the latch, too, has released it meanwhile
                self._closed.release()
        return self._is_open


def what_arrived(error: RuntimeError) -> BaseException:
    """Return what a RuntimeError stands for: Ctrl-C, if it made a ``with`` release a lock that it did not hold.

    `threading.Condition.wait`, and with it `threading.Thread.start`, release a lock within a ``with`` for it. What
    arrives before they have taken it again is the context of the error.
    """
    is_of_a_lock = "un-acquired lock" in str(error) or "unlocked lock" in str(error)
    return error.__context__ if is_of_a_lock and error.__context__ is not None else error
