"""New files written around the page cache, by a thread beside the one that makes the bytes.

A buffered write costs the training a core and its page cache; a direct one hardly any CPU, but it needs aligned
memory. So the buffers belong to the writer and are filled by the caller: while one is on its way to the disk,
the next is being filled. They are made at the first use, touched, and reused by every later file.

Guarantees: the file's bytes are those that were put, in order, without padding, once `DirectFile.finish` has
returned; where direct writes are refused, the same bytes go through the page cache. It does not fsync, and a
file that was not finished may hold any part and padding. A writer's files may be written by any threads at once;
each file belongs to one thread. The writing thread ends with its file, is a daemon only if its caller is, and
has its caller's niceness, which threads inherit on Linux.
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

from ckptkit.storage.descriptors import hide, show
from ckptkit.storage.system_calls import SYSTEM, SystemCalls

_log = logging.getLogger("ckptkit")

ALIGNMENT_BYTES = 4096  # a disk with larger blocks refuses, and gets buffered writes
BUFFER_BYTES = 4 << 20  # neither larger nor more of them were faster
BUFFERS = 2
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class DirectWriter:
    """The buffers of one storage, and whether its file system takes direct writes.

    Args:
        calls: The operating system.
        buffer_bytes: Size of a buffer, a multiple of `ALIGNMENT_BYTES`.
        buffers: How many a file gets. One set is kept; files written at the same time get sets of their own.
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
        """Start to write the new and empty file that is open as ``descriptor``.

        Raises:
            OSError: If there is no memory or no descriptor left, or the file is broken.
        """
        direct = not self._refused
        if direct:
            try:
                # Not at the open: where O_DIRECT is refused there, the new file is left behind all the same,
                # and nobody could tell it from another's.
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
            _log.info("this file system takes no direct writes; checkpoints go through the page cache")

    def _take(self) -> list[memoryview]:
        with self._lock:
            taken, self._kept = self._kept, []
        return taken or [_touched(self._buffer_bytes) for _ in range(self._buffers)]

    def _give_back(self, buffers: list[memoryview]) -> None:
        with self._lock:
            self._kept = buffers


class DirectFile:
    """One file while it is written, from its first byte on; a context manager, to be entered at once.

    ``buffer`` and ``put`` in turns, then ``finish``. Every buffer but the last has to be put whole.

    Args:
        calls: The operating system.
        descriptor: The open file; it stays the caller's to close.
        buffers: What to write from.
        direct: Whether the descriptor is in direct mode.
        on_refusal: Called when the first write shows that direct writes are refused; any thread.
        on_end: Called with the buffers when nothing uses them any more.
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
        # Its own, closed by the thread: were it the caller's, one who leaves in a hurry (a second Ctrl-C) could
        # close it under a write, which then would go to whatever file got the number next.
        self._descriptor = hide(os.dup(descriptor))
        self._thread = threading.Thread(target=self._run, name="ckptkit-io")

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except RuntimeError:
            # The process may have no more threads, or (Python 3.12.0) starts none while it ends: slower then, not lost.
            self._alone = True
        except BaseException:
            self._filled.put(None)  # interrupted, and it may run
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up = not self._whole
        self._end()
        self._on_end(self._buffers)

    def buffer(self) -> memoryview:
        """The next buffer to fill, as soon as one is free.

        Raises:
            OSError: If an earlier one could not be written.
        """
        buffer = self._free.get()
        if buffer is None:
            raise self._failure()
        return buffer

    def put(self, buffer: memoryview, size_bytes: int) -> None:
        """Let the first ``size_bytes`` of ``buffer`` be written; the caller touches it no more.

        Raises:
            OSError: If it is known already that they cannot be; mostly ``buffer`` or ``finish`` says so.
        """
        if not self._alone:
            self._filled.put((buffer, size_bytes))
            return
        self._write(buffer, size_bytes)
        self._free.put(buffer)

    def finish(self) -> None:
        """Wait until all is written.

        Raises:
            OSError: If it could not be.
        """
        self._end()
        if not self._whole:
            raise self._failure()

    def _end(self) -> None:
        self._filled.put(None)
        if not self._alone:
            self._thread.join()
        elif not self._ended:
            self._run()

    def _failure(self) -> OSError:
        return self._error or OSError(errno.EIO, "the file was given up")

    def _run(self) -> None:
        """Write until the end or a failure; whatever that is, who waits for a buffer is told, or would for ever."""
        whole = False
        try:
            while (part := self._filled.get()) is not None and not self._given_up:
                self._write(*part)
                self._free.put(part[0])
            whole = part is None
        except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
            self._fail(error)
        show(self._descriptor)
        try:
            os.close(self._descriptor)
        except BaseException as error:  # noqa: BLE001 - a network file system says here what it could not write
            self._fail(error)
        self._whole = whole and self._error is None
        self._ended = True
        self._free.put(None)

    def _fail(self, error: BaseException) -> None:
        if self._error is not None:
            return  # the first one says more
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
            # After a short write memory and file may be aligned no more, which a direct write would be refused for.
            if self._direct and done < size_bytes and done % ALIGNMENT_BYTES:
                self._go_on_buffered()
        self._written_bytes += size_bytes
        if done > size_bytes:
            self._calls.truncate(self._descriptor, self._written_bytes)

    def _go_on_buffered(self) -> None:
        self._calls.set_direct(self._descriptor, False)
        self._direct = False


def _touched(size_bytes: int) -> memoryview:
    # Private, so that a forked worker has its own; populated, since a page fault costs more than the copy into it.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    return memoryview(mmap.mmap(-1, size_bytes, flags=flags))
