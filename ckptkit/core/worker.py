"""Runs functions in threads of their own, and waits for them such that Ctrl-C leaves no thread that waits for ever.

`threading.Event`, `Condition`, `queue.Queue` and `concurrent.futures` do not promise that: they are Python code around
a lock, and Ctrl-C right after it was taken leaves it taken. `threading.Thread` turns Ctrl-C in ``start`` into a
RuntimeError, and in ``is_alive`` or ``join`` marks a thread that runs as ended
(https://github.com/python/cpython/issues/89437). So all of ckptkit waits for `Latch` and starts `Worker` (ADR 17). Any
thread may call what is here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from typing_extensions import Self

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger("ckptkit")

THREADS = 64  # the storage keeps as many connections
FEW = 4  # items that are not worth threads
_GLANCE_SECONDS = 0.5
_LOWEST, _LOW = 19, 10  # a busy thread of priority 0 gets 68 times as much of a core, or 9 times


class Latch:
    """Opens once, and stays open. Ctrl-C in a call lets no other thread wait longer than it asked for."""

    def __init__(self) -> None:
        self._is_open = False
        self._closed = threading.Lock()  # taken until the latch opens
        self._closed.acquire()

    @property
    def is_open(self) -> bool:
        return self._is_open

    def open(self) -> None:
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


class NoThreadError(RuntimeError):
    """Raised if a thread cannot be started, because there are too many or the interpreter ends."""


class Worker:
    """Runs a function once, in a thread. Wherever Ctrl-C arrives in `start`, the function either runs or never does.

    The function handles its errors. What a worker starts that ``gives_way`` to training does so, too. In a forked
    process, a worker that had not ended is lost.
    """

    def __init__(self, run: Callable[[], None], name: str, *, gives_way: bool = False) -> None:
        self._run = run
        self._gives_way = gives_way or threading.get_native_id() in _GIVING_WAY
        self._thread = threading.Thread(target=self._begin, name=name, daemon=True)
        self._runs: dict[str, bool] = {}  # decided once, in one step of C: by the thread, or by who takes it back
        self._ended = Latch()
        self._is_started = False
        self._maker = threading.get_ident()
        self._process = os.getpid()

    @property
    def has_ended(self) -> bool:
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
        """Start the thread; after a NoThreadError, the function has not run and may still be taken back."""
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
                _GIVING_WAY.discard(threading.get_native_id())
                self._ended.open()


class _Wait:
    """Lives as long as one thread waits; so a wait that Ctrl-C kept from being taken back does not count."""


# A worker that gives way has the lowest priority on Linux: less than a hundredth of a core, where all are busy. So
# nothing may wait for it like that, and `awaited` gives it the main thread's priority meanwhile.
_GIVING_WAY: set[int] = set()  # threads
_WAITS: weakref.WeakSet[_Wait] = weakref.WeakSet()  # of threads that wait for one of them
# No lock: a signal handler may wait, too, and Ctrl-C could leave it locked. Each step on a set is atomic.
os.register_at_fork(after_in_child=_GIVING_WAY.clear)  # they are threads of the parent
os.register_at_fork(after_in_child=_WAITS.clear)


@contextlib.contextmanager
def awaited() -> Iterator[None]:
    """Let workers that give way run at the main thread's priority while this thread waits for them in the block."""
    wait = _Wait()
    try:
        _WAITS.add(wait)
        _adapt_all()
        yield
    finally:
        _WAITS.discard(wait)
        _adapt_all()


def _give_way() -> None:
    _lowest()  # tries it on this thread
    _GIVING_WAY.add(threading.get_native_id())
    _adapt(threading.get_native_id())


def _adapt_all() -> None:
    for thread in [*_GIVING_WAY]:
        _adapt(thread)


def _adapt(thread: int) -> None:
    is_awaited = None
    try:
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())  # of the main thread
        while is_awaited is not bool(_WAITS):  # another thread begins or ends to wait meanwhile
            is_awaited = bool(_WAITS)
            os.setpriority(os.PRIO_PROCESS, thread, usual if is_awaited else _lowest())
    except ProcessLookupError:
        pass  # it has just ended
    except OSError as error:
        _log.debug("could not set the priority of a background thread: %s", error)


@functools.cache
def _lowest() -> int:
    """Return how low threads go; tries on this thread whether the system lets them rise again (CAP_SYS_NICE)."""
    try:
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, usual + 1)
        os.setpriority(os.PRIO_PROCESS, 0, usual)
    except OSError:
        return _LOW
    return _LOWEST


class Lanes:
    """Runs up to ``count`` jobs at once in threads, while the caller prepares the next ones; a context manager.

    When it is left, no job runs any more. No job is taken after a failure, which `submit` or `finish` raises: ``stop``
    opens, and running jobs may give up. The threads live only while it is entered, so that a fork between files loses
    none. Where no thread can be started, the caller's does the work. ``at_end`` is called once after the last job, also
    if the caller leaves earlier.
    """

    def __init__(
        self,
        count: int,
        *,
        at_end: Callable[[], None] = lambda: None,
        at_stop: Callable[[], None] = lambda: None,
        name: str = "ckptkit-lane",
    ) -> None:
        self.stop = Latch()
        self._name, self._at_stop = name, at_stop
        self._at_end = deque([at_end])  # whoever takes it out calls it
        self._count = count
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # written in C
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._room.put(None)
        self._workers: list[Worker] = []
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        if self._error is not None:
            self.finish()  # before it is raised: Ctrl-C on the way out may keep `__exit__` from ending the threads
        if len(self._workers) < self._count:
            worker = Worker(self._run, self._name)
            self._workers.append(worker)  # first: it may run although Ctrl-C arrives in its start
            try:
                worker.start()
            except NoThreadError:  # use those that run, or this one
                self._workers.remove(worker)
                self._count = len(self._workers)
        if self._workers:
            self._room.get()
            self._jobs.put(job)
        else:
            self._call(job)

    def finish(self) -> None:
        self._end()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                self._stop()
        finally:
            self._end()
        self._error = None  # its traceback leads to this object, and to what the jobs held

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._room.put(None)
            self._call(job)
        self._jobs.put(None)  # for the next thread
        self._finish_up()

    def _call(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - whatever it is, `submit` or `finish` raises it
            self._error = self._error or error  # the first one says more
            self._stop()

    def _end(self) -> None:
        self._jobs.put(None)
        try:
            self._join()
        except BaseException:  # Ctrl-C; a second one is raised at once
            self._stop()
            self._join()
            raise
        self._workers.clear()
        self._jobs = queue.SimpleQueue()  # without the end
        self._finish_up()

    def _join(self) -> None:
        for worker in self._workers:
            worker.join()

    def _stop(self) -> None:
        self.stop.open()
        self._at_stop()

    def _finish_up(self) -> None:
        with contextlib.suppress(IndexError):
            self._call(self._at_end.popleft())


def each_of(
    items: Sequence[Item],
    function: Callable[[Item], Result],
    *,
    threads: int = THREADS,
    few: int = FEW,
    stop: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return the results of ``function`` for each item, in their order, from calls in several threads.

    The first error of a call, or Ctrl-C, is raised after the calls under way have ended; ``stop`` is called before, so
    that they can end early. Where no thread can be started, or for a ``few`` items, the caller's does the work.
    """
    if len(items) <= few or threads < 2:
        return [function(item) for item in items]
    left = deque(enumerate(items))  # and not a job for each: handing one over waits for the GIL twice
    results: dict[int, Result] = {}

    def run() -> None:
        while left and not lanes.stop.is_open:
            try:
                at, item = left.popleft()
            except IndexError:  # another thread took the last one
                return
            results[at] = function(item)

    with Lanes(threads, at_stop=stop, name="ckptkit-read") as lanes:
        for _ in range(min(threads, len(items))):
            lanes.submit(run)
        lanes.finish()
    return [results[at] for at in range(len(items))]
