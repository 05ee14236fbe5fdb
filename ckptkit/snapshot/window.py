"""Provides one capture to the writer while training goes on: read in place up to the fence, copied where needed.

Guarantees: every byte that the writer gets is as it was at the capture, wherever training and storage stall. The writer
reads live memory without a lock and then checks whether the fence has overtaken it; if so, it discards what it read and
takes the copy. The fence therefore waits for the writer only for memory: its copies stay within the pool's limit, plus
one buffer if the writer itself waits for a slice. The window cannot know which other code writes to the parameters:
`Window.close` must be called before any of it does. On a remote storage, a fence that waits for memory while nothing
moves gives up the save: the writer's next read raises, and training goes on. A writer that waits for slices from a
thread that has ended also gives up. In a forked process, a window is over.

Threads: `open_shard` and `release` are for the writer, everything else for the training thread. The pool's condition
guards what they share, with the thread of `ckptkit.snapshot.ahead`; it is never held while bytes are copied.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, FunctionType
from typing import cast

import numpy as np
from pydantic import JsonValue

from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.stack import call_of
from ckptkit.core.worker import what_arrived
from ckptkit.errors import ResumeError, StorageError
from ckptkit.format.shards import Shard
from ckptkit.snapshot.ahead import CopyAhead
from ckptkit.snapshot.buffers import BUFFER_BYTES, Buffer, BufferPool, Bytes
from ckptkit.snapshot.extent import Extent, Piece
from ckptkit.snapshot.shard_reader import ShardReader

_log = logging.getLogger("ckptkit")

_PATIENCE_SECONDS = 10.0
_STANDSTILL_SECONDS = 120.0  # parts on a slow network can take surprisingly long
_STANDSTILL = (
    "the save was abandoned so that training could continue: its buffers were full, and the storage accepted "
    f"nothing for {_STANDSTILL_SECONDS:.0f} s. Increase Saving(buffer_bytes=...), or check the storage"
)
_NO_TRAINER = (
    f"the save was abandoned: the training thread has ended, and for {_STANDSTILL_SECONDS:.0f} s nothing has waited "
    "for the save, which still needs state from it. Call close(), or use the manager as a context manager"
)


class Window:
    """Holds what the writer reads of one capture.

    Args:
        progress: Progress of the capture.
        state: State of the capture.
        shards: The files.
        extents: The contents of each file, in file order.
        pool: Provides the buffers; those in use already belong to ``extents``.
        cost: Receives the costs of this window.
        by_slices: Whether only the training thread may access live memory.
        filling: A buffer that has room left.
        samples: As `ckptkit.checkpoint.write.Staged.samples`.
        monotonic: Gives seconds.
        gives_up: Whether a fence that waits for memory gives up the save when nothing has moved for two minutes.

    Attributes:
        ahead: Copies for the fence.
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
        self.cost = cost
        self._extents = extents
        self._pool = pool
        self._lock = pool.lock
        self._changed = pool.changed
        self.by_slices = by_slices
        self._monotonic = monotonic
        self._open = [one for file in extents for one in file if not one.held and not one.all_copied]
        own = () if by_slices else self._open
        self.ahead = CopyAhead(pool, own, progress=progress, cost=cost, monotonic=monotonic)
        self._filling = filling
        self._starving = False
        self._ended = False
        self._gives_up = gives_up
        self._given_up = ""  # the reason
        self._copying = threading.RLock()  # in C, for the reason that ADR 17 gives; one thread copies at a time
        self._trainer = threading.current_thread()
        self._process = os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether live memory may still be read for this capture."""
        if os.getpid() != self._process:
            return False
        with self._lock:
            return not self._is_over() and any(not one.all_copied for one in self._open)

    def close(self, *, patient: bool = True) -> None:
        """Run the fence: after this returns, training may change anything.

        Copies what the writer has not read yet, and waits for the writer if the buffers are full.

        Args:
            patient: If False, take the necessary memory instead of waiting.

        Raises:
            ResumeError: If a call of it is in progress in this thread, such as below a signal handler.
        """
        if os.getpid() != self._process:
            self._open = []  # as in `advance`
            return
        if self._is_within(sys._getframe(1)):
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
            while self._copy_some(extent, BUFFER_BYTES, wait=patient, beyond_limit=not patient):
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
        the slice.

        Args:
            micro_steps_left: Micro-steps until the update, so that the slices are of similar size.

        Returns:
            False, and nothing is copied, if a call of it is in progress in this thread, such as below a signal handler.
        """
        if os.getpid() != self._process:
            return True  # a forked child: any thread may have held the lock at the fork
        if self._is_within(sys._getframe(1)):
            return False
        with self._copying:
            if self.by_slices and self._open:
                self._advance(micro_steps_left)
        return True

    def _is_within(self, frame: FrameType | None) -> bool:
        """Return whether ``frame`` is a part of a call of this window, which may have half of its work done."""
        return call_of(_CALLS, self, frame) is not None

    def _advance(self, micro_steps_left: int) -> None:
        begun = self._monotonic()
        left = sum(one.live_to - one.live_from for one in self._open)
        slice_bytes = max(BUFFER_BYTES, -(-left // max(1, micro_steps_left)))
        while slice_bytes > 0 and self._open:
            copied = self._copy_some(self._open[0], slice_bytes, wait=False)
            if self._open[0].all_copied or self._ended:
                self._open.pop(0).let_go()
            elif not copied:
                break  # no buffer is free: the storage is slower than the slices
            slice_bytes -= copied
        self.cost.buffer_bytes = self._pool.made_bytes
        self.cost.stall_seconds += self._monotonic() - begun

    def open_shard(self, number: int, *, last: bool = True) -> ShardReader:
        """Open a file for reading from its start.

        Args:
            number: Index of the file in ``shards``.
            last: Whether this file is not read again, so that its buffers can be reused.
        """
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
            for file in self._extents:
                for one in file:
                    self._return_buffers(one)
                    one.let_go()

    def _return_buffers(self, extent: Extent) -> None:
        for piece in extent.pieces:
            # All others are returned already, or their thread returns them.
            if piece.buffer.pending_bytes and not self.ahead.is_filling(piece.buffer):
                self._pool.give_back(piece.buffer)
        extent.pieces.clear()

    def read(self, extent: Extent, at: int, out: Bytes, *, last: bool) -> None:
        """Fill ``out`` from byte ``at`` of ``extent`` on; for the writer."""
        done = 0
        while done < len(out):
            done += self._read_some(extent, at + done, out[done:], last=last)

    def _read_some(self, extent: Extent, at: int, out: Bytes, *, last: bool) -> int:
        with self._lock:
            piece = extent.piece_at(at)
            while piece is None and self.by_slices and not extent.held and not self._given_up:
                self._starving = True
                self._changed.notify_all()
                self._wait_for_slice()
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

    def _wait_for_slice(self) -> None:
        """Wait for the training thread's next slice or its fence."""
        if self._changed.wait(_STANDSTILL_SECONDS) or self._trainer.is_alive():
            return
        # While the interpreter exits, the main thread counts as dead but waits for this save in slices.
        if self._trainer is not threading.main_thread():
            self._given_up = _NO_TRAINER

    def _read_copy(self, piece: Piece, at: int, out: Bytes, *, last: bool) -> int:
        count = min(len(out), piece.stop - at)
        offset = piece.offset_bytes + at - piece.start
        np.copyto(out[:count], piece.buffer.memory[offset : offset + count])
        if last:
            with self._lock:
                piece.buffer.pending_bytes -= count
                is_filling = piece.buffer is self._filling or self.ahead.is_filling(piece.buffer)
                if not piece.buffer.pending_bytes and not is_filling:
                    self._pool.give_back(piece.buffer)
        return count

    def _copy_some(self, extent: Extent, at_most_bytes: int, *, wait: bool, beyond_limit: bool = False) -> int:
        """Copy at most one buffer of live bytes of ``extent``; returns how many, 0 if nothing is left to copy."""
        buffer = self._room(extent, wait=wait, beyond_limit=beyond_limit)
        if buffer is None:
            return 0
        offset = buffer.filled_bytes
        with self._lock:
            if self._ended or extent.all_copied:
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
            if self._ended or first >= stop:
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

    def _room(self, extent: Extent, *, wait: bool, beyond_limit: bool) -> Buffer | None:
        """Return the buffer to fill next; None if there is none, or nothing is left to copy."""
        with self._lock:
            if self._is_over() or extent.all_copied:
                return None
            filling = self._filling
            if filling is not None and filling.filled_bytes == BUFFER_BYTES and not filling.pending_bytes:
                # Already read while it was being filled. It does not go back to the pool: Ctrl-C between that and the
                # assignment below would leave it here and there, and two captures would fill it at once.
                filling.filled_bytes = 0
            if filling is not None and filling.filled_bytes < BUFFER_BYTES:
                return filling
            self._filling = None  # the writer returns it
            # If the buffers hold only what the writer needs after this slice, waiting would never end.
            starving = self._starving
        buffer = self._pool.take(beyond_limit=starving or beyond_limit)
        if buffer is None and wait:
            try:
                buffer = self._wait_for_buffer(extent)
            except RuntimeError as error:
                raise what_arrived(error) from None
        with self._lock:
            if not self._is_over():
                self._filling = buffer
                return buffer
            if buffer is not None:
                self._pool.give_back(buffer)
        return None

    def _is_over(self) -> bool:
        if os.getpid() != self._process:  # the writer is not in this process, and any thread may have held the lock
            return True
        return self._ended or bool(self._given_up)  # another thread sets them

    def _refuse_given_up(self) -> None:
        if self._given_up:
            raise StorageError(self._given_up)

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
                    self._given_up = _STANDSTILL
            # Still locked: the thread that copies ahead may be about to take the one that the fence has waited for.
            buffer = self._pool.take(beyond_limit=self._starving)
        self.cost.fence_wait_seconds += self._monotonic() - begun
        return buffer


_IS_OPEN = cast(FunctionType, cast(property, vars(Window)["is_open"]).fget)
_CALLS = {id(one.__code__): one.__name__ for one in (Window.close, Window.advance, Window.release, _IS_OPEN)}
