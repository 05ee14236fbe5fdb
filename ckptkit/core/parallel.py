"""Runs many small requests in parallel; each takes about 30 ms on an object store, and a read needs thousands.

Guarantees: results come in the order of the items. The error of a call is raised after the calls under way have ended.
Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 64  # the storage keeps as many connections
FEW = 4  # not worth threads


def each_of(items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """Return the results of ``function`` for each item; it must be safe to call from many threads."""
    if len(items) <= FEW:
        return [function(item) for item in items]
    pool = ThreadPoolExecutor(min(THREADS, len(items)), thread_name_prefix="ckptkit-read")
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)  # after the first error the rest is not needed
