"""Provides one capture to the writer while training goes on: read in place up to the fence, copied where needed.

Every byte that the writer gets is as it was at the capture, wherever training and storage stall. The writer reads live
memory without a lock and then checks whether the fence has overtaken it; if so, it discards what it read and takes the
copy. The fence waits for the writer only for memory. On a remote storage, a fence that waits while nothing moves gives
up the save. In a forked process, a window is over.

`Window.open_shard` and `read` are for the writer; `advance` and `release` for any thread that waits for the save;
everything else for the training thread. The pool's condition guards what they share, with the thread of `CopyAhead`;
nobody holds it while bytes are copied.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import cast

import numpy as np
from pydantic import JsonValue

from ckptkit.core.active_calls import call_of
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.worker import NoThreadError, Worker, what_arrived
from ckptkit.errors import ResumeError, StorageError
from ckptkit.format.shards import Shard
from ckptkit.snapshot.buffers import BUFFER_BYTES, Buffer, BufferPool, Bytes, Extent, Piece

_log = logging.getLogger("ckptkit")
_CAUTION = 0.8  # of the pace before: a copy for nothing costs less than a fence that waits

_PATIENCE_SECONDS = 10.0
_STANDSTILL_SECONDS = 120.0  # parts on a slow network can take surprisingly long
_STANDSTILL = (
    "the save was abandoned so that training could continue: its buffers were full, and the storage accepted "
    f"nothing for {_STANDSTILL_SECONDS:.0f} s. Increase Saving(buffer_bytes=...), or check the storage"
)


class _Filler:
    """Copies live memory of a window into buffers, one after the other; one thread at a time."""

    by_slices = False

    def __init__(self, pool: BufferPool, cost: SaveCost, filling: Buffer | None = None) -> None:
        self.cost = cost
        self._pool, self._lock, self._changed = pool, pool.lock, pool.changed
        self._filling = filling
        self._starving = False  # the writer waits for a slice

    def _is_over(self) -> bool:
        raise NotImplementedError

    def is_filling(self, buffer: Buffer) -> bool:
        """Return whether ``buffer`` is in use here, so that only this may return it. The caller holds the lock."""
        return buffer is self._filling

    def _has_room(self, take: Callable[[], Buffer | None]) -> bool:
        """Return whether there is a buffer to fill; if necessary, ``take`` gives one."""
        with self._lock:
            if self._is_over():
                return False
            filling = self._filling
            if filling is not None and filling.filled_bytes == BUFFER_BYTES and not filling.pending_bytes:
                # Already read while it was being filled. It does not go back to the pool: Ctrl-C between that and the
                # assignment below would leave it here and there, and two captures would fill it at once.
                filling.filled_bytes = 0
            if filling is not None and filling.filled_bytes < BUFFER_BYTES:
                return True
            self._filling = None  # the writer returns it
        buffer = take()
        with self._lock:
            if not self._is_over():
                self._filling = buffer
                return buffer is not None
            if buffer is not None:
                self._pool.give_back(buffer)
        return False

    def _copy_some(self, extent: Extent, at_most_bytes: int) -> int:
        """Copy live bytes of ``extent`` into the buffer; return how many, 0 if nothing is left or may be copied."""
        buffer = self._filling
        assert buffer is not None  # noqa: S101 - `_has_room` has returned True
        offset = buffer.filled_bytes
        with self._lock:
            if self._is_over() or extent.all_copied:
                return 0
            room = min(at_most_bytes, BUFFER_BYTES - offset)
            if self.by_slices:
                start, stop = extent.live_from, min(extent.live_to, extent.live_from + room)
            else:
                start, stop = max(extent.taken_bytes, extent.live_to - room), extent.live_to
        live = extent.live()
        if live is None:
            return 0
        np.copyto(buffer.memory[offset : offset + stop - start], live[start:stop])
        with self._lock:
            first = max(start, extent.taken_bytes)  # the writer may have read some of it meanwhile
            if self._is_over() or first >= stop:
                return 0
            piece = Piece(first, stop, buffer, offset + first - start)
            self._changed.notify_all()  # whoever waits goes on only once the lock is free
            # Ctrl-C arrives at calls, not between assignments: with the append as the last call, either all of this has
            # happened or nothing. A piece whose bytes do not count as filled would be overwritten by the next copy, and
            # the writer would read other bytes than those of the capture.
            if self.by_slices:
                extent.live_from = stop
            else:
                extent.live_to = first
            buffer.filled_bytes += stop - start
            buffer.pending_bytes += stop - first
            self._starving = False
            self.cost.fenced_bytes += stop - first
            extent.pieces.append(piece)
        return stop - first


class CopyAhead(_Filler):
    """Copies in the background what the writer will not have read when the fence comes.

    It copies from the end, as the fence does, without a lock, as the writer reads; and discards the copy
    if the fence has come meanwhile: so nothing ever waits for it, and no copy is of a later moment than the capture. It
    also measures the window's pace. Whoever calls `note_read`, `end` or `release` holds the pool's lock.
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
        self.lacking_bytes = 0  # what the writer will probably not have read when the fence comes
        self.memory_bytes = self.limit_bytes = 0  # what all buffers need for that, and may take
        self.free_bytes: Callable[[], int] = lambda: 0  # it may hang, so only the thread asks
        self.ranks = 1  # that may all be on this machine
        self.pace: float | None = None  # bytes that the writer read in a micro-step, once the fence has come
        super().__init__(pool, cost)
        self._extents = tuple(extents)
        self._micro_steps = max(1, progress.accumulation_steps - progress.micro_step)
        self._monotonic = monotonic
        self._has_ended = self._is_released = self._is_measured = False
        self._opened_at = self._read_at = monotonic()

    def expect(self, pace: float | None) -> None:
        """Set ``lacking_bytes`` for a window that goes as the one before; call it before the writer begins."""
        live_bytes = sum(extent.live_to - extent.live_from for extent in self._extents)
        lacking_bytes = 0 if pace is None else max(0, live_bytes - int(_CAUTION * pace * self._micro_steps))
        # The writer reads the rest in place, however slow it was, and shows its pace.
        self.lacking_bytes = min(lacking_bytes, live_bytes - live_bytes // 16)

    def start(self) -> None:
        if self.lacking_bytes >= BUFFER_BYTES:
            try:
                Worker(self.copy, "ckptkit-ahead", gives_way=True).start()
            except NoThreadError as error:
                _log.debug("nothing is copied ahead of the fence: %s", error)

    def note_read(self) -> None:
        self._read_at = self._monotonic()

    def end(self) -> None:
        """Note that the fence comes; a copy under way is discarded, and no other begins."""
        self._has_ended = True
        if self._is_measured:
            return
        self._is_measured = True
        now = self._monotonic()
        all_read = all([extent.all_copied for extent in self._extents])  # noqa: C419 - a generator would swallow Ctrl-C
        read_seconds = (self._read_at if all_read else now) - self._opened_at
        # A save that has ended without having read everything has failed, and tells nothing.
        if self._extents and read_seconds > 0 and (all_read or not self._is_released):
            micro_step_seconds = (now - self._opened_at) / self._micro_steps
            self.pace = self.cost.in_place_bytes / read_seconds * micro_step_seconds

    def release(self) -> None:
        """End for good, since no copy will be read any more."""
        self._has_ended = self._is_released = True

    def _is_over(self) -> bool:
        return self._has_ended

    def copy(self) -> None:
        """Copy ``lacking_bytes``, unless the writer or the fence come first, or the buffers are full.

        Memory that was too slow to make is made afterwards, for the next save.
        """
        left = self.lacking_bytes
        try:
            most_bytes = self._most_bytes()
            for extent in reversed(self._extents):
                while left > 0 and self._has_room(lambda: self._pool.take(most_bytes)):
                    if not (copied := self._copy_some(extent, left)):
                        break
                    left -= copied
            while not self._is_released and self._pool.make_one(self.memory_bytes, most_bytes):
                pass
        except (OSError, MemoryError) as error:
            _log.info("there is no memory to copy ahead of the fence: %s", error)
        finally:
            with self._pool.lock:
                buffer, self._filling = self._filling, None
                if buffer is not None and (self._is_released or not buffer.pending_bytes):
                    self._pool.give_back(buffer)

    def _most_bytes(self) -> int:
        """Return how much all buffers may take: beyond the pool's limit, this rank's part of half of what is free."""
        if self.limit_bytes <= self._pool.limit_bytes:
            return self.limit_bytes
        beyond_bytes = self.free_bytes() // (2 * self.ranks)
        return min(self.limit_bytes, self._pool.limit_bytes + beyond_bytes // BUFFER_BYTES * BUFFER_BYTES)


class Window(_Filler):
    """Holds what the writer reads of one capture.

    With ``by_slices``, only the training thread accesses live memory. ``filling`` is a buffer that has room left. With
    ``gives_up``, a fence that waits for memory gives up the save when nothing has moved for two minutes.
    """

    def __init__(
        self,
        progress: Progress,
        state: Mapping[str, JsonValue],
        shards: Sequence[Shard],
        extents: Sequence[Sequence[Extent]],
        pool: BufferPool,
        *,
        cost: SaveCost,
        by_slices: bool,
        filling: Buffer | None = None,
        samples: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        gives_up: bool = False,
    ) -> None:
        self.progress = progress
        self.state = state
        self.shards = tuple(shards)
        self.samples = samples or {}
        super().__init__(pool, cost, filling)
        self._extents = extents
        self.by_slices = by_slices
        self._monotonic = monotonic
        self._open = [extent for extent in itertools.chain(*extents) if not extent.held and not extent.all_copied]
        own = () if by_slices else self._open
        self.ahead = CopyAhead(pool, own, progress=progress, cost=cost, monotonic=monotonic)
        self._ended = False
        self._gives_up = gives_up
        self._is_given_up = False
        self._copying = threading.RLock()  # in C, for the reason that ADR 17 gives; one thread copies at a time
        self._process = os.getpid()

    @property
    def is_open(self) -> bool:
        if os.getpid() != self._process:
            return False
        with self._lock:
            return not self._is_over() and any(not extent.all_copied for extent in self._open)

    def close(self, *, patient: bool = True) -> None:
        """Run the fence: after this returns, training may change anything.

        Copies what the writer has not read yet, and waits for the writer if the buffers are full.
        """
        if os.getpid() != self._process:
            self._open = []  # as in `advance`
            return
        if call_of(_CALLS, self, sys._getframe(1)) is not None:  # by then half of its work may be done
            raise ResumeError(
                "the fence was called while it, or a copy for the same save, was in progress in this thread, by a "
                "signal handler. Set a flag there, and change parameters when that call has returned"
            )
        with self._copying:
            with self._lock:
                self.ahead.end()
            if self._is_over():
                self._open = []
            if self._open:
                self._close(patient=patient)

    def _close(self, *, patient: bool) -> None:
        begun = self._monotonic()
        # From the end, because the writer reads from the start; by slices the writer cannot read ahead.
        for extent in self._open if self.by_slices else reversed(self._open):
            while self._fill(extent, BUFFER_BYTES, wait=patient, beyond_limit=not patient):
                pass
            # Checked before the memory is dropped: training would change what the writer still has to read.
            assert extent.all_copied or self._is_over()  # noqa: S101 - only then is nothing left to copy
            extent.let_go()
        self._open = []
        self.cost.buffer_bytes = self._pool.made_bytes
        took = self._monotonic() - begun
        self.cost.fence_seconds += took
        self.cost.stall_seconds += took

    def advance(self, micro_steps_left: int) -> bool:
        """Copy the next slice, if memory is copied by slices; call between two micro-steps.

        A thread that waits for the save may call this too: the training thread may be idle, and an update waits for
        the slice. Returns False, and copies nothing, within a call of this window in the same thread.
        """
        if os.getpid() != self._process:
            return True  # a forked child: any thread may have held the lock at the fork
        if call_of(_CALLS, self, sys._getframe(1)) is not None:
            return False
        with self._copying:
            if self.by_slices and self._open:
                self._advance(micro_steps_left)
        return True

    def _advance(self, micro_steps_left: int) -> None:
        begun = self._monotonic()
        left = sum(extent.live_to - extent.live_from for extent in self._open)
        slice_bytes = max(BUFFER_BYTES, -(-left // max(1, micro_steps_left)))
        while slice_bytes > 0 and self._open:
            copied = self._fill(self._open[0], slice_bytes, wait=False)
            if self._open[0].all_copied or self._ended:
                self._open.pop(0).let_go()
            elif not copied:
                break  # no buffer is free: the storage is slower than the slices
            slice_bytes -= copied
        self.cost.buffer_bytes = self._pool.made_bytes
        self.cost.stall_seconds += self._monotonic() - begun

    def open_shard(self, number: int, *, last: bool = True) -> ShardReader:
        """Open a file for reading from its start; after its ``last`` reading, its buffers are used again."""
        return ShardReader(self, self._extents[number], last=last)

    def release(self) -> None:
        """Release live memory and buffers; the save has ended, successfully or not."""
        if os.getpid() != self._process:
            return  # a forked child: the writer may have held the lock at the fork
        with self._lock:
            self._ended = True
            self.ahead.release()
            self._changed.notify_all()  # whoever waits goes on only once the lock is free
            # Taken from here first: after Ctrl-C in between, a second release would return the buffer a second time.
            filling, self._filling = self._filling, None
            if filling is not None and not filling.pending_bytes:
                self._pool.give_back(filling)
            for extent in itertools.chain(*self._extents):
                for piece in extent.pieces:
                    # All others are returned already, or their thread returns them.
                    if piece.buffer.pending_bytes and not self.ahead.is_filling(piece.buffer):
                        self._pool.give_back(piece.buffer)
                extent.pieces.clear()
                extent.let_go()

    def read(self, extent: Extent, at: int, out: Bytes, *, last: bool) -> None:
        done = 0
        while done < len(out):
            done += self._read_some(extent, at + done, out[done:], last=last)

    def _read_some(self, extent: Extent, at: int, out: Bytes, *, last: bool) -> int:
        with self._lock:
            piece = extent.piece_at(at)
            while piece is None and self.by_slices and not extent.held and not self._is_given_up:
                self._starving = True
                self._changed.notify_all()
                self._changed.wait(_PATIENCE_SECONDS)
                piece = extent.piece_at(at)
            self._refuse_given_up()
            live = extent.live() if piece is None else None
            count = min(len(out), extent.live_to - at)
        if piece is not None:
            return self._read_copy(piece, at, out, last=last)
        assert live is not None  # noqa: S101 - only `release` drops memory that is neither copied nor read
        np.copyto(out[:count], live[at : at + count])
        if extent.held:
            return count
        with self._lock:
            self._refuse_given_up()
            if at + count > extent.live_to:
                return 0  # the fence has overtaken: what was read may be of a later moment
            if last:
                extent.taken_bytes = at + count
                self.cost.in_place_bytes += count
                self.ahead.note_read()
                self._changed.notify_all()
        return count

    def _read_copy(self, piece: Piece, at: int, out: Bytes, *, last: bool) -> int:
        count = min(len(out), piece.stop - at)
        offset = piece.offset_bytes + at - piece.start
        np.copyto(out[:count], piece.buffer.memory[offset : offset + count])
        if last:
            with self._lock:
                piece.buffer.pending_bytes -= count
                is_filling = self.is_filling(piece.buffer) or self.ahead.is_filling(piece.buffer)
                if not piece.buffer.pending_bytes and not is_filling:
                    self._pool.give_back(piece.buffer)
        return count

    def _fill(self, extent: Extent, at_most_bytes: int, *, wait: bool, beyond_limit: bool = False) -> int:
        """Copy at most one buffer of ``extent``; return how many bytes, 0 if none can be copied."""

        def take() -> Buffer | None:
            # If the buffers hold only what the writer needs after this slice, waiting would never end.
            buffer = self._pool.take(beyond_limit=self._starving or beyond_limit)
            if buffer is None and wait:
                try:
                    return self._wait_for_buffer(extent)
                except RuntimeError as error:
                    raise what_arrived(error) from None
            return buffer

        if extent.all_copied or not self._has_room(take):
            return 0
        return self._copy_some(extent, at_most_bytes)

    def _is_over(self) -> bool:
        if os.getpid() != self._process:  # the writer is not in this process, and any thread may have held the lock
            return True
        return self._ended or self._is_given_up  # another thread sets them

    def _refuse_given_up(self) -> None:
        if self._is_given_up:
            raise StorageError(_STANDSTILL)

    def _wait_for_buffer(self, extent: Extent) -> Buffer | None:
        begun = moved = self._monotonic()
        with self._lock:
            while not (self._is_over() or extent.all_copied or self._pool.has_free or self._starving):
                if self._changed.wait(_PATIENCE_SECONDS):
                    moved = self._monotonic()
                    continue
                _log.warning(
                    "training waits for the checkpoint of cycle %d: the buffers (%d MiB) are full and the storage "
                    "is slow. Increase Saving(buffer_bytes=...), or save less often",
                    *(self.progress.cycles, self._pool.made_bytes >> 20),
                )
                if self._gives_up and self._monotonic() - moved >= _STANDSTILL_SECONDS:
                    self._is_given_up = True
            # Still locked: the thread that copies ahead may be about to take the one that the fence has waited for.
            buffer = self._pool.take(beyond_limit=self._starving)
        self.cost.fence_wait_seconds += self._monotonic() - begun
        return buffer


_IS_OPEN = cast(FunctionType, cast(property, vars(Window)["is_open"]).fget)
_CALLS = {
    id(function.__code__): function.__name__ for function in (Window.close, Window.advance, Window.release, _IS_OPEN)
}


class ShardReader:
    """Reads the bytes of one shard of a window in order; a `ckptkit.storage.ByteStream`."""

    def __init__(self, window: Window, extents: Sequence[Extent], *, last: bool) -> None:
        self._window = window
        self._extents = extents
        self._last = last
        self._next = 0
        self._at = 0

    def readinto(self, buffer: memoryview, /) -> int:
        out = np.frombuffer(buffer, np.uint8)
        done = 0
        while done < len(out) and self._next < len(self._extents):
            extent = self._extents[self._next]
            count = min(len(out) - done, extent.size_bytes - self._at)
            self._window.read(extent, self._at, out[done : done + count], last=self._last)
            done += count
            self._at += count
            if self._at == extent.size_bytes:
                self._next, self._at = self._next + 1, 0
        return done
