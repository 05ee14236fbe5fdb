"""Runs calls in parallel: small requests, each about 30 ms on an object store, reads of large files, or large copies.

Guarantees: results come in the order of the items. The error of a call, or Ctrl-C, is raised after the calls under way
have ended. Not `concurrent.futures`, whose locks Ctrl-C may leave taken (ADR 17). Where no thread can be started, the
caller's thread does the work. Any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ckptkit.core.worker import NoThreadError, Worker

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 64  # the storage keeps as many connections
FEW = 4  # not worth threads


def each_of(
    items: Sequence[Item],
    function: Callable[[Item], Result],
    *,
    threads: int = THREADS,
    few: int = FEW,
    stop: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return the results of ``function`` for each item; it must be safe to call from many threads.

    Args:
        items: What to call it for.
        function: Called once for each.
        threads: How many calls are under way at most.
        few: A number of items that is not worth a thread.
        stop: Called once an error ends the work, so that the calls under way can end early.
    """
    if len(items) <= few or threads < 2:
        return [function(item) for item in items]
    left = deque(enumerate(items))
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run() -> None:
        while left:
            try:
                at, item = left.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                results[at] = function(item)
            except BaseException as error:  # noqa: BLE001 - raised below, whatever it is
                errors[at] = error
                end()  # after the first error the rest is not needed

    def end() -> None:
        left.clear()
        stop()

    _run_in_threads(run, min(threads, len(items)), end)
    if errors:
        raise errors[min(errors)]
    return [results[at] for at in range(len(items))]


def _run_in_threads(run: Callable[[], None], count: int, stop: Callable[[], None]) -> None:
    """Run ``run`` in ``count`` threads and wait until all have ended; call ``stop`` first if an error arrives."""
    workers: list[Worker] = []
    try:
        for _ in range(count):
            workers.append(Worker(run, "ckptkit-read"))  # first: it may run although Ctrl-C arrives in its start
            workers[-1].start()
    except NoThreadError:  # from Python 3.12 on, an ending interpreter starts none
        run()
    except BaseException:  # Ctrl-C
        stop()
        raise
    finally:
        try:
            _join(workers)
        except BaseException:
            stop()
            _join(workers)
            raise


def _join(workers: Sequence[Worker]) -> None:
    for one in workers:
        one.join()
