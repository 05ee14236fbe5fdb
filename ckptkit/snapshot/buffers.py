"""Memory for what is copied of a capture: reused, aligned, and touched before it is needed.

Guarantees: a buffer that was given back is given out again before a new one is made; each is made once, at its
first use, so that a later copy meets no page fault. Buffers are given out by the training thread only; any thread gives
them back.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

import numpy as np
import numpy.typing as npt

BUFFER_BYTES = 4 << 20
_HUGE_PAGE_BYTES = 2 << 20

Bytes = npt.NDArray[np.uint8]


class Buffer:
    """`BUFFER_BYTES` of page-aligned memory.

    Attributes:
        memory: All of it.
        filled_bytes: How much of it is in use, from its start.
        pending_bytes: How much of that has not been read for the last time.
    """

    def __init__(self) -> None:
        self.memory: Bytes = _aligned(BUFFER_BYTES)
        self.memory[:] = 1  # touches every page
        self.filled_bytes = 0
        self.pending_bytes = 0


def _aligned(size_bytes: int) -> Bytes:
    """Memory that can be huge pages, where there are any: copies into it are a tenth faster."""
    pages = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES)  # what is not touched takes no memory
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.__array_interface__["data"][0] % _HUGE_PAGE_BYTES
    return memory[start : start + size_bytes]


class BufferPool:
    """The buffers of one manager.

    Attributes:
        changed: Notified when a buffer comes back; guards everything that several threads share in a window.
        limit_bytes: How much memory to have at most, unless a capture itself needs more, or the writer waits for a
            slice and frees nothing before; at least one buffer.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.limit_bytes = BUFFER_BYTES
        self._free: list[Buffer] = []
        self._made = 0

    @property
    def made_bytes(self) -> int:
        """The memory that all buffers take, in use or not."""
        return self._made * BUFFER_BYTES

    def take(self, *, beyond_limit: bool = False) -> Buffer | None:
        """A buffer, or None where the limit is reached and all are in use."""
        with self.changed:
            if self._free:
                return self._free.pop()
            if not beyond_limit and self._made and self.made_bytes + BUFFER_BYTES > self.limit_bytes:
                return None
            self._made += 1
        return Buffer()

    def give_back(self, buffer: Buffer) -> None:
        """Take ``buffer`` back; the caller holds ``changed``."""
        buffer.filled_bytes = buffer.pending_bytes = 0
        self._free.append(buffer)
        self.changed.notify_all()

    @property
    def has_free(self) -> bool:
        """Whether `take` gives a buffer without making one; the caller holds ``changed``."""
        return bool(self._free)
