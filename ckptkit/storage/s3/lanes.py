"""Runs jobs on a few threads at once: the parts of a file, each in a request of its own.

Guarantees: when `Lanes` is left, no job runs any more; a failure is raised, and no job is taken after it. The
threads live only while one file is on its way, so a process that forks takes none with it. Where a thread cannot be
had (an interpreter on its way out makes none from Python 3.12 on), the caller's own thread does the work. Not
`concurrent.futures`, whose pools refuse work once the interpreter has begun to end, when a last save is still written.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from typing_extensions import Self

Job = Callable[[], None]


class Lanes:
    """A context in which jobs run beside each other.

    Args:
        count: How many run at most.
        depth: How many may wait; `submit` blocks beyond that.

    Attributes:
        stop: Set when a job has raised or the context is left by an exception: what still runs is wanted by nobody.
    """

    def __init__(self, count: int, depth: int = 1) -> None:
        self.stop = threading.Event()
        self._count = count
        self._jobs: queue.Queue[Job | None] = queue.Queue(depth)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def submit(self, job: Job) -> None:
        """Have ``job`` run; raises what an earlier one raised."""
        self._raise()
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name="ckptkit-lane", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: those that are there do it, or this one
                self._count = len(self._threads)
            else:
                self._threads.append(thread)
        if self._threads:
            self._jobs.put(job)
        else:
            job()

    def finish(self) -> None:
        """Wait for all jobs; raises what one of them raised."""
        self._join()
        self._raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop.set()
        self._join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised by `submit` or `finish`, whatever it is
                self._error = error
                self.stop.set()

    def _join(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def in_lanes(count: int, jobs: Iterable[Callable[[threading.Event], None]]) -> None:
    """Run ``jobs``, ``count`` at a time, each with `Lanes.stop`, and wait for them; raises what one of them raised."""
    with Lanes(count) as lanes:
        for job in jobs:
            lanes.submit(partial(job, lanes.stop))
        lanes.finish()
