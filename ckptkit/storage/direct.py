"""Writes new files past the page cache, in a thread beside the one that produces the bytes.

A buffered write costs training a core and its page cache. A direct write needs hardly any CPU, but aligned memory. So
the writer owns the buffers and the caller fills them: while one buffer is being written, the caller fills the next.
The buffers are allocated and touched at the first use, and reused for every later file.

Guarantees: once `DirectFile.finish` has returned, the file holds the bytes that were put, in order, without padding.
Where direct writes are refused, the same bytes go through the page cache. Does not fsync. A file that was not finished
may hold any part of the bytes, and padding. Threads: several threads may write files of one writer at the same time;
each file belongs to one thread. The writing thread ends with its file, is a daemon only if its caller is, and has its
caller's niceness, which threads inherit on Linux.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType

from typing_extensions import Self

from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.storage.descriptors import hide, show
from ckptkit.storage.system_calls import SYSTEM, SystemCalls

_log = logging.getLogger("ckptkit")

ALIGNMENT_BYTES = 4096  # a disk with larger blocks refuses direct writes and gets buffered ones
BUFFER_BYTES = 4 << 20  # larger buffers, or more of them, were not faster
BUFFERS = 2
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class DirectWriter:
    """Keeps the buffers of one storage and remembers whether its file system accepts direct writes.

    Args:
        calls: The system calls to use.
        buffer_bytes: Size of a buffer, a multiple of `ALIGNMENT_BYTES`.
        buffers: Number of buffers per file. One set is kept; files written at the same time get their own sets.
    """

    def __init__(
        self, calls: SystemCalls | None = None, *, buffer_bytes: int = BUFFER_BYTES, buffers: int = BUFFERS
    ) -> None:
        self._calls = calls or SYSTEM
        self._buffer_bytes = buffer_bytes
        self._buffers = buffers
        self._lock = threading.Lock()
        self._kept: list[memoryview] = []
        self._refused = False

    def begin(self, descriptor: int) -> DirectFile:
        """Start to write the new, empty file that is open as ``descriptor``.

        Raises:
            OSError: If no memory or no descriptor is left, or the file cannot be used.
        """
        direct = not self._refused
        if direct:
            try:
                # Not in open(): a file system that refuses O_DIRECT there still leaves the new file behind,
                # and it could not be told from a file of another process.
                self._calls.set_direct(descriptor, True)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                direct = False
                self._remember_refusal()
        return DirectFile(
            self._calls,
            descriptor,
            self._take(),
            direct=direct,
            on_refusal=self._remember_refusal,
            on_end=self._give_back,
        )

    def _remember_refusal(self) -> None:
        with self._lock:
            first, self._refused = not self._refused, True
        if first:
            _log.info("this file system does not support direct writes; checkpoints are written through the page cache")

    def _take(self) -> list[memoryview]:
        with self._lock:
            taken, self._kept = self._kept, []
        return taken or [_touched(self._buffer_bytes) for _ in range(self._buffers)]

    def _give_back(self, buffers: list[memoryview]) -> None:
        with self._lock:
            self._kept = buffers


class DirectFile:
    """Writes one file from its first byte on; a context manager that must be entered at once.

    Call ``buffer`` and ``put`` in turn, then ``finish``. Every buffer but the last must be put whole.

    Args:
        calls: The system calls to use.
        descriptor: The open file; the caller closes it.
        buffers: The buffers to write from.
        direct: Whether the descriptor is in direct mode.
        on_refusal: Called, in any thread, when the first write shows that direct writes are refused.
        on_end: Called with the buffers when they are no longer used.
    """

    def __init__(
        self,
        calls: SystemCalls,
        descriptor: int,
        buffers: list[memoryview],
        *,
        direct: bool,
        on_refusal: Callable[[], None],
        on_end: Callable[[list[memoryview]], None],
    ) -> None:
        self._calls = calls
        self._buffers = buffers
        self._direct = direct
        self._on_refusal = on_refusal
        self._on_end = on_end
        self._written_bytes = 0
        self._error: OSError | None = None
        self._whole = False
        self._given_up = False
        self._alone = False
        self._ended = False
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._filled: SimpleQueue[tuple[memoryview, int] | None] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)
        # A duplicate that the thread closes. A caller that leaves early (a second Ctrl-C) could close its own
        # descriptor during a write, and the write would go to the next file that gets the number.
        self._descriptor = hide(os.dup(descriptor))
        self._worker = Worker(self._run, "ckptkit-io", daemon=None)

    def __enter__(self) -> Self:
        try:
            self._worker.start()
        except NoThreadError:
            # Or (Python 3.12.0) the process is ending: write in this thread, only slower.
            self._alone = True
        except BaseException:
            self._filled.put(None)  # interrupted: the thread may be running and must end
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up = not self._whole
        self._end()
        self._on_end(self._buffers)

    def buffer(self) -> memoryview:
        """Return the next buffer to fill; waits until one is free.

        Raises:
            OSError: If an earlier buffer could not be written.
        """
        buffer = self._free.get()
        if buffer is None:
            raise self._failure()
        return buffer

    def put(self, buffer: memoryview, size_bytes: int) -> None:
        """Write the first ``size_bytes`` of ``buffer``; the caller must not touch the buffer afterwards.

        Raises:
            OSError: If the write has failed already; mostly ``buffer`` or ``finish`` reports it.
        """
        if not self._alone:
            self._filled.put((buffer, size_bytes))
            return
        self._write(buffer, size_bytes)
        self._free.put(buffer)

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            OSError: If a write failed.
        """
        self._end()
        if not self._whole:
            raise self._failure()

    def _end(self) -> None:
        self._filled.put(None)
        if not self._alone:
            self._worker.join()
        elif not self._ended:
            self._run()

    def _failure(self) -> OSError:
        return self._error or OSError(errno.EIO, "the file was abandoned")

    def _run(self) -> None:
        """Write until the end or a failure; wakes the caller in every case, else it would wait forever for a buffer."""
        whole = False
        try:
            while (part := self._filled.get()) is not None and not self._given_up:
                self._write(*part)
                self._free.put(part[0])
            whole = part is None
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it
            self._fail(error)
        show(self._descriptor)
        try:
            os.close(self._descriptor)
        except BaseException as error:  # noqa: BLE001 - a network file system reports failed writes here
            self._fail(error)
        self._whole = whole and self._error is None
        self._ended = True
        self._free.put(None)

    def _fail(self, error: BaseException) -> None:
        if self._error is not None:
            return  # the first error says more
        if not isinstance(error, OSError):
            died = OSError(errno.EIO, f"the writing thread died of {type(error).__name__}: {error}")
            died.__cause__ = error
            error = died
        self._error = error

    def _write(self, buffer: memoryview, size_bytes: int) -> None:
        padded_bytes = size_bytes + -size_bytes % ALIGNMENT_BYTES
        buffer[size_bytes:padded_bytes] = bytes(padded_bytes - size_bytes)
        done = 0
        while done < size_bytes:
            end = padded_bytes if self._direct else size_bytes
            try:
                count = self._calls.pwrite(self._descriptor, buffer[done:end], self._written_bytes + done)
            except OSError as error:
                if not self._direct or error.errno not in _REFUSALS:
                    raise
                self._go_on_buffered()
                self._on_refusal()
                continue
            if not count:
                raise OSError(errno.EIO, "the file system wrote nothing")
            done += count
            # After a short write, memory and file may be unaligned, and a direct write would be refused.
            if self._direct and done < size_bytes and done % ALIGNMENT_BYTES:
                self._go_on_buffered()
        self._written_bytes += size_bytes
        if done > size_bytes:
            self._calls.truncate(self._descriptor, self._written_bytes)

    def _go_on_buffered(self) -> None:
        self._calls.set_direct(self._descriptor, False)
        self._direct = False


def _touched(size_bytes: int) -> memoryview:
    # Private, so that a forked worker has its own copy. Populated, since a page fault costs more than the copy.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    return memoryview(mmap.mmap(-1, size_bytes, flags=flags))
