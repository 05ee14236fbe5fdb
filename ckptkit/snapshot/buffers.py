"""Manages the memory for copies of a capture: reused, aligned, and touched before it is needed.

Guarantees: a returned buffer is handed out again before a new one is made. Each buffer is made once, at its first use,
so that later copies cause no page faults. A buffer that nobody holds any more, because Ctrl-C came between taking it
and keeping it, is freed and no longer counts. Any thread takes, makes and returns buffers; two that take one at the
same time may exceed the limit by one.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

BUFFER_BYTES = 4 << 20
_UNASKED = 16
_HUGE_PAGE_BYTES = 2 << 20

Bytes = npt.NDArray[np.uint8]


class Buffer:
    """Holds `BUFFER_BYTES` of page-aligned memory.

    Attributes:
        memory: All of it.
        filled_bytes: Bytes in use, from the start.
        pending_bytes: How many of these have yet to be read for the last time.
    """

    def __init__(self) -> None:
        self.memory: Bytes = _aligned(BUFFER_BYTES)
        self.memory[:] = 1  # touches every page
        self.filled_bytes = 0
        self.pending_bytes = 0


def _aligned(size_bytes: int) -> Bytes:
    """Return memory that can use huge pages, if the system has them: copies into it are a tenth faster."""
    pages = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES)  # untouched pages take no memory
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.__array_interface__["data"][0] % _HUGE_PAGE_BYTES
    return memory[start : start + size_bytes]


class BufferPool:
    """Owns the buffers of one manager.

    Attributes:
        lock: Guards everything that several threads share in a window. Written in C: Ctrl-C that arrives while
            `threading.Condition`, which is Python code, has just taken its lock would leave it taken for ever.
        changed: Notified when a buffer is returned; of ``lock``.
        limit_bytes: Most memory to use, unless a capture itself needs more, or the writer waits for a slice and frees
            nothing before it; at least one buffer.
        ahead_bytes: The same for copies ahead of the fence, whose buffers are made in the background. The fence makes
            none beyond its own limit: waiting for the writer is mostly faster than the first touch of memory.
        allows: Returns whether so many bytes beyond ``limit_bytes`` may be made for copies ahead; slow, so it is asked
            once in `_UNASKED` buffers, by their thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.limit_bytes = self.ahead_bytes = BUFFER_BYTES
        self.allows: Callable[[int], bool] = lambda more_bytes: True
        self._free: list[Buffer] = []
        self._made: weakref.WeakSet[Buffer] = weakref.WeakSet()

    @property
    def made_bytes(self) -> int:
        """Memory of all buffers, in use or not."""
        return len(self._made) * BUFFER_BYTES

    def take(self, *, beyond_limit: bool = False, ahead: bool = False) -> Buffer | None:
        """Return a buffer, or None if all are in use and no more may be made.

        Args:
            beyond_limit: Make one in any case.
            ahead: Take it for a copy ahead.
        """
        with self.lock:
            if self._free:
                return self._free.pop()
            if not (beyond_limit or not self._made or self._has_room(self.ahead_bytes if ahead else self.limit_bytes)):
                return None
        if ahead and self._refuses_more():
            return None
        return self._make()

    def make_one(self, size_bytes: int, *, ahead: bool = False) -> bool:
        """Make a free buffer and return True, unless there are buffers for ``size_bytes`` already.

        Args:
            size_bytes: All buffers together.
            ahead: Whether it is for copies ahead, and within their limit.
        """
        with self.lock:
            if self.made_bytes >= size_bytes or (ahead and not self._has_room(self.ahead_bytes)):
                return False
        if ahead and self._refuses_more():
            return False
        buffer = self._make()
        with self.lock:
            self.give_back(buffer)
        return True

    def _has_room(self, limit_bytes: int) -> bool:
        return self.made_bytes + BUFFER_BYTES <= limit_bytes

    def _refuses_more(self) -> bool:
        beyond = -(-(self.made_bytes + BUFFER_BYTES - self.limit_bytes) // BUFFER_BYTES)  # with the next one
        return beyond > 0 and (beyond - 1) % _UNASKED == 0 and not self.allows((beyond - 1 + _UNASKED) * BUFFER_BYTES)

    def _make(self) -> Buffer:
        buffer = Buffer()
        with self.lock:
            self._made.add(buffer)
        return buffer

    def shrink(self, size_bytes: int) -> None:
        """Free buffers that nobody uses, as long as there are more than ``size_bytes``."""
        with self.lock:
            while self._free and self.made_bytes > size_bytes:
                self._made.discard(self._free.pop())

    def give_back(self, buffer: Buffer) -> None:
        """Take ``buffer`` back; the caller holds ``lock``."""
        self.changed.notify_all()  # whoever waits goes on only once the lock is free
        # The last call, after which nothing is left to do: Ctrl-C behind it finds a buffer that has no bytes pending,
        # and is not returned once more.
        buffer.filled_bytes = buffer.pending_bytes = 0
        self._free.append(buffer)

    @property
    def has_free(self) -> bool:
        """Whether `take` can return a buffer without making one; the caller holds ``lock``."""
        return bool(self._free)
