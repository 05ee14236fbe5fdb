"""Keeps the buffers that parts are sent from, because the first touch of new pages costs more than the copy.

Guarantees: a buffer is lent to one caller at a time. No more buffers are kept between files than one file needs. Any
thread may call it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PartMemory:
    """Lends the buffers of one storage.

    Args:
        kept: Maximum number of buffers to keep while they are not lent.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._free: list[memoryview] = []

    @contextmanager
    def lent(self, count: int, size_bytes: int) -> Iterator[list[memoryview]]:
        """Lend ``count`` buffers of ``size_bytes`` each, for as long as the context lasts."""
        with self._lock:
            fitting = [one for one in self._free if len(one) == size_bytes][:count]
            self._free = [one for one in self._free if not any(one is taken for taken in fitting)]
        buffers = fitting + [memoryview(bytearray(size_bytes)) for _ in range(count - len(fitting))]
        try:
            yield buffers
        finally:
            with self._lock:
                self._free = [*buffers, *self._free][: self._kept]
