"""Defines `Worker`, which runs a function in a thread of its own, and `awaited`, for whoever waits for one.

A worker may give way to training: it has the lowest priority on Linux, and so have the workers that it starts. On a
machine whose cores are all busy, it then gets less than a hundredth of one. So nothing may wait for it like that:
`awaited` gives such workers the priority of the main thread, for as long as a thread waits. A process that is not
allowed to raise a priority again (neither CAP_SYS_NICE nor RLIMIT_NICE) does not go so low in the first place.

Guarantees: wherever Ctrl-C arrives in `Worker.start`, it is raised as itself, and the function either runs or never
does. `Worker.join` returns only when it has ended or never begins. `threading.Thread` promises neither: Ctrl-C in its
``start`` may become a RuntimeError, and in ``is_alive`` or ``join`` it marks a thread that runs as ended
(https://github.com/python/cpython/issues/89437). In a forked process, a worker that had not ended is lost. Any thread.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator

from ckptkit.core.latch import Latch, what_arrived

_log = logging.getLogger("ckptkit")
_GLANCE_SECONDS = 0.5
_LOWEST, _LOW = 19, 10  # a busy thread of priority 0 gets 68 times as much of a core, or 9 times


class NoThreadError(RuntimeError):
    """Raised if a thread cannot be started, because there are too many or the interpreter ends."""


class Worker:
    """Runs a function once.

    Args:
        run: The function; it must handle its errors.
        name: Name of the thread.
        daemon: Whether the interpreter exits without waiting for the thread; None: as for the caller's thread.
        gives_way: Whether the function runs beside training. What a worker starts that gives way does so, too.
    """

    def __init__(
        self, run: Callable[[], None], name: str, *, daemon: bool | None = True, gives_way: bool = False
    ) -> None:
        self._run = run
        self._gives_way = gives_way or threading.get_native_id() in _GIVING_WAY
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
                if self._gives_way:
                    _give_way()
                self._run()
            finally:
                _GIVING_WAY.pop(threading.get_native_id(), None)
                self._ended.open()


_GIVING_WAY: dict[int, int] = {}  # threads, and the process of each
_WAITS: dict[object, int] = {}  # of threads that wait for one of them, and the process of each
# No lock: a signal handler may wait, too, and Ctrl-C could leave it locked. Each step on a dict is atomic.


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """Let workers that give way run at the main thread's priority while this thread waits for them in the block."""
    mine = object()
    try:
        _WAITS[mine] = os.getpid()
        for thread in _giving_way():
            _adapt(thread)
        yield
    finally:
        _WAITS.pop(mine, None)
        for thread in _giving_way():
            _adapt(thread)


def _give_way() -> None:
    """Lower the priority of this thread, unless one waits for it already."""
    _lowest()  # tries it on this thread
    _GIVING_WAY[threading.get_native_id()] = os.getpid()
    _adapt(threading.get_native_id())


def _adapt(thread: int) -> None:
    """Give a thread the priority that it should have now."""
    is_awaited = None
    while is_awaited is not _is_awaited():  # another thread begins or ends to wait meanwhile
        is_awaited = _is_awaited()
        _set(thread, is_awaited=is_awaited)


def _is_awaited() -> bool:
    """Return whether a thread of this process waits, and not only one of the process that it was forked from."""
    return os.getpid() in [*_WAITS.values()]


def _giving_way() -> list[int]:
    """Return the threads of this process that give way, without those of the one that it was forked from."""
    return [thread for thread, process in [*_GIVING_WAY.items()] if process == os.getpid()]


def _set(thread: int, *, is_awaited: bool) -> None:
    if sys.platform != "linux":
        return  # elsewhere the call would change the whole process
    try:
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())  # of the main thread
        os.setpriority(os.PRIO_PROCESS, thread, usual if is_awaited else _lowest())
    except ProcessLookupError:
        pass  # it has just ended
    except OSError as error:
        _log.debug("could not set the priority of a background thread: %s", error)


@functools.cache
def _lowest() -> int:
    """Return how low threads go, by what the system allows; tries it on this thread, once in a process."""
    if sys.platform != "linux":
        return _LOW
    try:
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, usual + 1)
        os.setpriority(os.PRIO_PROCESS, 0, usual)
    except OSError:
        return _LOW
    return _LOWEST
