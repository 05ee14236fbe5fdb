"""Manages the memory for copies of a capture, reused and touched before it is needed, and says where bytes lie.

A returned buffer is handed out again before a new one is made. A buffer that nobody holds any more, because Ctrl-C came
between taking it and keeping it, is freed and no longer counts. Any thread takes, makes and returns buffers; two that
take one at the same time may exceed the limit by one. The pool's lock guards the fields of extents.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptkit.core.tensors import Array, bytes_of

BUFFER_BYTES = 4 << 20
_HUGE_PAGE_BYTES = 2 << 20

Bytes = npt.NDArray[np.uint8]


def whole_state_bytes(size_bytes: int) -> int:
    """Return memory for a whole state: buffers have gaps, and unneeded ones are not made."""
    return size_bytes + size_bytes // 2


def buffer_limit_bytes(size_bytes: int, buffer_bytes: int | None, *, is_remote: bool) -> int:
    """Return how much memory the copies of a state may take, by default or as ``buffer_bytes`` says."""
    if buffer_bytes is None:
        buffer_bytes = whole_state_bytes(size_bytes) if is_remote else size_bytes // 4
    return max(BUFFER_BYTES, buffer_bytes)


class Buffer:
    """Holds `BUFFER_BYTES` of memory that can use huge pages, if the system has them: copies are a tenth faster."""

    def __init__(self) -> None:
        pages = mmap.mmap(-1, BUFFER_BYTES + _HUGE_PAGE_BYTES)  # untouched pages take no memory
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        memory = np.frombuffer(pages, np.uint8)
        start = -memory.__array_interface__["data"][0] % _HUGE_PAGE_BYTES
        self.memory: Bytes = memory[start : start + BUFFER_BYTES]
        self.memory[:] = 1  # touches every page
        self.filled_bytes = 0  # in use, from the start
        self.pending_bytes = 0  # of these, yet to be read for the last time


class BufferPool:
    """Owns the buffers of one manager.

    ``lock`` guards everything that several threads share in a window. It is written in C: Ctrl-C that arrives while
    `threading.Condition`, which is Python code, has just taken its lock would leave it taken for ever. ``limit_bytes``
    is exceeded where a capture itself needs more, or the writer waits for a slice and frees nothing before it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.limit_bytes = BUFFER_BYTES
        self._free: list[Buffer] = []
        self._made: weakref.WeakSet[Buffer] = weakref.WeakSet()

    @property
    def made_bytes(self) -> int:
        return len(self._made) * BUFFER_BYTES

    def take(self, limit_bytes: int | None = None, *, beyond_limit: bool = False) -> Buffer | None:
        """Return a buffer, or None if all are in use and no more may be made; None takes the pool's own limit."""
        with self.lock:
            if self._free:
                return self._free.pop()
            most_bytes = self.limit_bytes if limit_bytes is None else limit_bytes
            if self._made and not beyond_limit and self.made_bytes + BUFFER_BYTES > most_bytes:
                return None
        return self._make()

    def make_one(self, size_bytes: int, limit_bytes: int | None = None) -> bool:
        """Make a free buffer within ``limit_bytes`` and return True, unless there are some for ``size_bytes``."""
        with self.lock:
            is_limited = limit_bytes is not None and self.made_bytes + BUFFER_BYTES > limit_bytes
            if self.made_bytes >= size_bytes or is_limited:
                return False
        buffer = self._make()
        with self.lock:
            self.give_back(buffer)
        return True

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
        return bool(self._free)


class Piece(NamedTuple):
    """Holds bytes ``[start, stop)`` of an extent, copied into ``buffer`` at ``offset_bytes``."""

    start: int
    stop: int
    buffer: Buffer
    offset_bytes: int


class Extent:
    """Represents consecutive bytes of a shard: copied, or live memory that is still unchanged."""

    __slots__ = ("_live", "_source", "held", "live_from", "live_to", "pieces", "size_bytes", "taken_bytes")

    def __init__(self, size_bytes: int, source: Array | Callable[[], Array] | None, *, held: bool = False) -> None:
        self.size_bytes = size_bytes
        self.held = held  # training never changes its memory: a header, or frozen weights
        self.taken_bytes = 0  # how far the writer has read; it reads from the front
        self.live_from = 0  # what lies below, and from `live_to` on, is in `pieces`
        self.live_to = size_bytes if source is not None else 0
        self.pieces: list[Piece] = []  # in no particular order
        self._source = source
        self._live: Bytes | None = None

    @property
    def all_copied(self) -> bool:
        """Whether the writer needs no more live memory of this extent."""
        return max(self.live_from, self.taken_bytes) >= self.live_to

    def live(self) -> Bytes | None:
        """Return the live memory; None after `let_go`. The training thread calls a copying source, once."""
        source = self._source  # read once, because the writer may drop it meanwhile
        if self._live is None and source is not None:
            self._live = bytes_of(source() if callable(source) else source)
        return self._live

    def let_go(self) -> None:
        self._live = self._source = None

    def piece_at(self, at: int) -> Piece | None:
        return next((piece for piece in self.pieces if piece.start <= at < piece.stop), None)
