"""Reads the stream that a file is written from, and checks it against the announced size.

A stream that ends early or is too long is an error before its file counts as written, in one place for all backends.
Exceptions of the stream itself pass through unchanged. Only the writing thread calls the stream.
"""

from __future__ import annotations

import contextlib
import mmap
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from ckptkit.core.worker import Lanes
from ckptkit.errors import StorageError


class ByteStream(Protocol):
    """Gives bytes in order, each once; `io.BytesIO` is one."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes; returns their number, less than its length only at the end."""


class SizedStream:
    """Reads a stream that must give exactly ``size_bytes``; ``target``, for messages, is written from it."""

    def __init__(self, stream: ByteStream, size_bytes: int, target: object) -> None:
        self._stream = stream
        self._size_bytes = size_bytes
        self._target = target
        self.left_bytes = size_bytes

    def fill(self, buffer: memoryview) -> int:
        """Put the next bytes into ``buffer``, as many as fit and are left; returns their number."""
        wanted = min(len(buffer), self.left_bytes)
        given = self._stream.readinto(buffer[:wanted])
        if given != wanted:
            at = self._size_bytes - self.left_bytes
            raise StorageError(
                f"could not write {self._target}: of the {self._size_bytes} bytes announced, its source returned "
                f"{given} after the first {at}, expected {wanted}"
            )
        self.left_bytes -= given
        return given

    def expect_end(self) -> None:
        """Check that the stream has no further byte."""
        if self._stream.readinto(memoryview(bytearray(1))):
            raise StorageError(
                f"could not write {self._target}: its source has more than the {self._size_bytes} bytes announced"
            )

    def send(self, put: Callable[[int, memoryview, int], None], lanes: Lanes, buffers: Sequence[memoryview]) -> None:
        """Fill ``buffers`` one after the other, and have each written while the next one is filled.

        Args:
            put: Writes a part: its number from 0, its buffer, and how many bytes of it are the part.
            lanes: Runs ``put``, and may still read the buffers afterwards.
            buffers: Memory of one size.
        """
        free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for buffer in buffers:
            free.put(buffer)

        def write(number: int, buffer: memoryview, size_bytes: int) -> None:
            try:
                if not lanes.stop.is_open:
                    put(number, buffer, size_bytes)
            finally:
                free.put(buffer)  # also after a failure, since the caller waits for memory before it checks for one

        number = 0
        while self.left_bytes:
            buffer = free.get()
            lanes.submit(partial(write, number, buffer, self.fill(buffer)))
            number += 1


class ReusedMemory:
    """Keeps the ``count`` buffers that a large file is written from: touching new pages costs more than a copy."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._free: list[memoryview] = []

    @contextlib.contextmanager
    def lent(self, size_bytes: int, count: int | None = None) -> Iterator[list[memoryview]]:
        """Lend buffers for one file; enter it before the `Lanes` that read them."""
        count = self._count if count is None else count
        with self._lock:
            buffers = [buffer for buffer in self._free if len(buffer) == size_bytes][:count]
            self._free = [buffer for buffer in self._free if not any(buffer is taken for taken in buffers)]
        try:
            buffers += [touched(size_bytes) for _ in range(count - len(buffers))]
        except OSError as error:
            raise StorageError(f"could not get memory to write from: {error}") from error
        try:
            yield buffers
        except Exception:  # and not a second Ctrl-C, which leaves jobs running that read them
            self._keep(buffers)
            raise
        self._keep(buffers)

    def _keep(self, buffers: Sequence[memoryview]) -> None:
        with self._lock:
            self._free = [*buffers, *self._free][: self._count]


def touched(size_bytes: int) -> memoryview:
    """Return memory with all its pages, aligned to one."""
    # Private, so that a forked worker has its own copy. Populated, since a page fault costs more than the copy.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return memoryview(mmap.mmap(-1, size_bytes, flags=flags))
