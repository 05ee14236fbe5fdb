"""Copies in the background what the writer will not have read when the fence comes, so that the fence finds less to do.

`Pace` says how much that is, from the window before. `CopyAhead` copies it.

Guarantees: as the writer, it copies live memory without a lock, and discards the copy if the fence has come meanwhile.
So nothing ever waits for it, and no copy is of a later moment than the capture. It takes no memory beyond the limit of
the pool, but for one buffer where the fence takes one at the same time.

Threads: `CopyAhead.start` begins a thread of its own. The other methods are called by the training thread and the
writer, which hold the pool's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.snapshot.buffers import BUFFER_BYTES, Buffer, BufferPool
from ckptkit.snapshot.extent import Extent, Piece

_log = logging.getLogger("ckptkit")
_CAUTION = 0.8  # of the pace before: a copy for nothing costs less than a fence that waits


class Pace(NamedTuple):
    """Says how one window went.

    Attributes:
        bytes_per_second: How fast the writer read in place.
        micro_step_seconds: How long a micro-step took.
    """

    bytes_per_second: float
    micro_step_seconds: float

    def lacking_bytes(self, live_bytes: int, micro_steps: int) -> int:
        """Return how many of ``live_bytes`` the writer will not have read after ``micro_steps``."""
        expected_bytes = int(_CAUTION * self.bytes_per_second * self.micro_step_seconds * micro_steps)
        return max(0, live_bytes - expected_bytes)


class CopyAhead:
    """Copies live memory of one window, from the end, as the fence does; and measures the window's pace.

    Args:
        pool: Has the buffers, and the lock.
        extents: What is read in place, in the order of the writer; nothing if only the training thread may read it.
        progress: Progress of the capture.
        cost: Counts the bytes.
        monotonic: Gives seconds.

    Attributes:
        lacking_bytes: How much the writer will probably not have read when the fence comes.
        memory_bytes: How much all buffers need for that.
        pace: How it went, once the fence has come; None if that is unknown.
    """

    def __init__(
        self,
        pool: BufferPool,
        extents: Sequence[Extent],
        *,
        progress: Progress,
        cost: SaveCost,
        monotonic: Callable[[], float],
    ) -> None:
        self.lacking_bytes = self.memory_bytes = 0
        self.pace: Pace | None = None
        self._pool = pool
        self._extents = tuple(extents)
        self._micro_steps = max(1, progress.accumulation_steps - progress.micro_step)
        self._cost = cost
        self._monotonic = monotonic
        self._filling: Buffer | None = None
        self._is_over = self._is_released = self._is_measured = False
        self._opened_at = self._read_at = monotonic()

    def expect(self, pace: Pace | None) -> None:
        """Set ``lacking_bytes`` for a window that goes as the one before; call it before the writer begins."""
        live_bytes = sum(one.live_to - one.live_from for one in self._extents)
        lacking_bytes = 0 if pace is None else pace.lacking_bytes(live_bytes, self._micro_steps)
        # The writer reads the rest in place, however slow it was, and shows its pace.
        self.lacking_bytes = min(lacking_bytes, live_bytes - live_bytes // 16)

    def start(self) -> None:
        """Copy ``lacking_bytes`` beside training."""
        if self.lacking_bytes >= BUFFER_BYTES:
            try:
                Worker(self.copy, "ckptkit-ahead", gives_way=True).start()
            except NoThreadError as error:
                _log.debug("nothing is copied ahead of the fence: %s", error)

    def note_read(self) -> None:
        """Note that the writer has just read in place. The caller holds the lock."""
        self._read_at = self._monotonic()

    def end(self) -> None:
        """Note that the fence comes; a copy under way is discarded, and no other begins. The caller holds the lock."""
        self._is_over = True
        if self._is_measured:
            return
        self._is_measured = True
        now = self._monotonic()
        all_read = all(one.all_copied for one in self._extents)
        read_seconds = (self._read_at if all_read else now) - self._opened_at
        # A save that has ended without having read everything has failed, and tells nothing.
        if self._extents and read_seconds > 0 and (all_read or not self._is_released):
            micro_step_seconds = (now - self._opened_at) / self._micro_steps
            self.pace = Pace(self._cost.in_place_bytes / read_seconds, micro_step_seconds)

    def release(self) -> None:
        """End for good, since no copy will be read any more. The caller holds the lock."""
        self._is_over = self._is_released = True

    def is_filling(self, buffer: Buffer) -> bool:
        """Return whether ``buffer`` is in use here, so that only this may return it. The caller holds the lock."""
        return buffer is self._filling

    def copy(self) -> None:
        """Copy ``lacking_bytes``, unless the writer or the fence come first, or the buffers are full.

        Memory that was too slow to make is made afterwards, for the next save.
        """
        left = self.lacking_bytes
        try:
            for extent in reversed(self._extents):
                while left > 0 and self._has_room() and (copied := self._copy_some(extent, left)):
                    left -= copied
            while not self._is_released and self._pool.make_one(self.memory_bytes, ahead=True):
                pass
        except (OSError, MemoryError) as error:
            _log.info("there is no memory to copy ahead of the fence: %s", error)
        finally:
            self._let_go()

    def _has_room(self) -> bool:
        """Whether there is a buffer to fill; takes one if necessary."""
        with self._pool.lock:
            if self._is_over:
                return False  # `_let_go` returns a buffer that the writer no longer does
            filling = self._filling
            if filling is not None and filling.filled_bytes == BUFFER_BYTES and not filling.pending_bytes:
                filling.filled_bytes = 0  # the writer has read it already
            if filling is not None and filling.filled_bytes < BUFFER_BYTES:
                return True
            self._filling = None  # the writer returns it
        buffer = self._pool.take(ahead=True)
        with self._pool.lock:
            self._filling = buffer
        return buffer is not None

    def _copy_some(self, extent: Extent, at_most_bytes: int) -> int:
        """Copy at most one buffer of ``extent``; return how many bytes, 0 if nothing is left or the fence came."""
        buffer = self._filling
        assert buffer is not None  # noqa: S101 - only this thread changes it
        with self._pool.lock:
            offset = buffer.filled_bytes
            stop = extent.live_to
            start = max(extent.taken_bytes, extent.live_from, stop - min(at_most_bytes, BUFFER_BYTES - offset))
            live = extent.live() if start < stop else None
        if live is None:
            return 0
        np.copyto(buffer.memory[offset : offset + stop - start], live[start:stop])
        with self._pool.lock:
            first = max(start, extent.taken_bytes)  # the writer may have read some of it meanwhile
            if self._is_over or first >= stop:
                return 0
            extent.pieces.append(Piece(first, stop, buffer, offset + first - start))
            extent.live_to = first
            buffer.filled_bytes += stop - start
            buffer.pending_bytes += stop - first
            self._cost.fenced_bytes += stop - first
            self._pool.changed.notify_all()
        return stop - first

    def _let_go(self) -> None:
        with self._pool.lock:
            buffer, self._filling = self._filling, None
            if buffer is not None and (self._is_released or not buffer.pending_bytes):
                self._pool.give_back(buffer)
