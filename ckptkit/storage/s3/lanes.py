"""Runs jobs on a few threads at once: the parts of a file, each in its own request.

Guarantees: when `Lanes` is left, no job runs any more. A failure is raised, and `Lanes.submit` takes no job after it.
The threads live only while a `Lanes` is entered, so a fork between files loses none. Where no thread can be started
(from Python 3.12 on, an ending interpreter starts none), the caller's thread does the work. Not `concurrent.futures`,
whose pools refuse work once the interpreter has begun to end, while the last save may still be written.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType

from typing_extensions import Self

from ckptkit.core.latch import Latch
from ckptkit.core.worker import NoThreadError, Worker

Job = Callable[[], None]


class Lanes:
    """Runs jobs concurrently; a context manager.

    Args:
        count: Maximum number of jobs that run at once; one more may wait, and `submit` blocks beyond that.

    Attributes:
        stop: Opened when a job has raised or the context is left by an exception: running jobs may give up.
    """

    def __init__(self, count: int) -> None:
        self.stop = Latch()
        self._count = count
        # Written in C, unlike `queue.Queue`, which Ctrl-C may leave locked.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._room.put(None)
        self._workers: list[Worker] = []
        self._error: BaseException | None = None

    def submit(self, job: Job) -> None:
        """Run ``job``; raises the exception of an earlier job."""
        self._raise()
        if len(self._workers) < self._count:
            worker = Worker(self._run, "ckptkit-lane")
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
            job()

    def finish(self) -> None:
        """Wait for all jobs; raises the exception of a failed job."""
        self._join()
        self._jobs = queue.SimpleQueue()  # without the end that `_join` put there
        self._raise()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop.open()
        self._join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._room.put(None)
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - whatever it is, `submit` or `finish` raises it
                self._error = error
                self.stop.open()
        self._jobs.put(None)  # for the next thread

    def _join(self) -> None:
        self._jobs.put(None)
        for one in self._workers:
            one.join()
        self._workers.clear()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def in_lanes(count: int, jobs: Iterable[Callable[[Latch], None]]) -> None:
    """Run ``jobs``, ``count`` at a time, each with `Lanes.stop`, and wait; raises the exception of a failed job."""
    with Lanes(count) as lanes:
        for job in jobs:
            lanes.submit(partial(job, lanes.stop))
        lanes.finish()
