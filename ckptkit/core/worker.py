"""Defines `Worker`, which runs a function in a thread of its own and never loses sight of it.

Guarantees: wherever Ctrl-C arrives in `Worker.start`, it is raised as itself, and the function either runs or never
does. `Worker.join` returns only when it has ended or never begins. `threading.Thread` promises neither: Ctrl-C in its
``start`` may become a RuntimeError, and in ``is_alive`` or ``join`` it marks a thread that runs as ended
(https://github.com/python/cpython/issues/89437). In a forked process, a worker that had not ended is lost. Any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ckptkit.core.latch import Latch, what_arrived

_GLANCE_SECONDS = 0.5


class NoThreadError(RuntimeError):
    """Raised if a thread cannot be started, because there are too many or the interpreter ends."""


class Worker:
    """Runs a function once.

    Args:
        run: The function; it must handle its errors.
        name: Name of the thread.
        daemon: Whether the interpreter exits without waiting for the thread; None: as for the caller's thread.
    """

    def __init__(self, run: Callable[[], None], name: str, *, daemon: bool | None = True) -> None:
        self._run = run
        self._thread = threading.Thread(target=self._begin, name=name, daemon=daemon)
        self._runs: dict[str, bool] = {}  # decided once, in one step of C: by the thread, or by who takes it back
        self._ended = Latch()
        self._is_started = False
        self._maker = threading.get_ident()
        self._process = os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether the function has run to its end."""
        return self._ended.is_open

    @property
    def is_lost(self) -> bool:
        """Whether the function will not come to its end in this process.

        Another thread than the one that made the worker takes a start that was interrupted for one under way.
        """
        runs = self._runs.get("runs")
        if runs:  # not `is_alive`, for the reason above
            return self._thread not in threading.enumerate() and not self._ended.is_open
        may_begin = self._is_started or threading.get_ident() != self._maker
        return runs is False or os.getpid() != self._process or not may_begin

    def start(self) -> None:
        """Start the thread.

        Raises:
            NoThreadError: If there can be no more threads; the function has not run, and may still be taken back.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            # A signal handler may raise a RuntimeError of its own here. Python's two messages begin like this.
            if type(error) is RuntimeError and str(error).startswith("can't "):
                raise NoThreadError(str(error)) from None
            raise what_arrived(error) from None
        self._is_started = True

    def take_back(self) -> bool:
        """Make sure that the function never runs; returns False if it has begun."""
        return not self._runs.setdefault("runs", False)

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the end of a function that was started; return whether it has ended."""
        return self._ended.wait(seconds)

    def join(self) -> None:
        """Wait until the function has ended; one whose start was interrupted is taken back if it has not begun."""
        if not self._is_started and self.take_back():
            return
        while not (self._ended.wait(_GLANCE_SECONDS) or self.is_lost):
            pass
        if self._is_started:
            self._thread.join()  # it has nothing left to do

    def _begin(self) -> None:
        if self._runs.setdefault("runs", True):
            try:
                self._run()
            finally:
                self._ended.open()
