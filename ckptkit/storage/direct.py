"""Writes new files past the page cache, in a thread beside the one that produces the bytes.

A buffered write costs training a core and its page cache; a direct write needs hardly any CPU, but aligned memory. Once
`DirectWriter.write` has returned, the file holds the bytes of the source, in order, without padding; where direct
writes are refused, they went through the page cache. It does not fsync. After an error, the file may hold any part of
the bytes, and padding. Several threads may write files at the same time. The writing thread has its caller's niceness,
which threads inherit on Linux.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ckptkit.core.worker import Lanes
from ckptkit.storage.local_files import storage_errors
from ckptkit.storage.source import ReusedMemory, SizedStream
from ckptkit.storage.system_calls import SYSTEM, SystemCalls, hide, show

_log = logging.getLogger("ckptkit")

ALIGNMENT_BYTES = 4096  # a disk with larger blocks refuses direct writes and gets buffered ones
BUFFER_BYTES = 4 << 20  # larger buffers, or more of them, were not faster
BUFFERS = 2
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class DirectWriter:
    """Writes the large files of one storage, and remembers whether its file system accepts direct writes.

    Args:
        calls: The system calls to use.
        buffer_bytes: Size of a buffer, a multiple of `ALIGNMENT_BYTES`.
        buffers: Number of buffers per file. One set is kept; files written at the same time get their own sets.
    """

    def __init__(
        self, calls: SystemCalls = SYSTEM, *, buffer_bytes: int = BUFFER_BYTES, buffers: int = BUFFERS
    ) -> None:
        self._calls = calls
        self._buffer_bytes = buffer_bytes
        self._memory = ReusedMemory(buffers)
        self._refused: set[bool] = set()  # of one element: added in one step of C

    def write(self, descriptor: int, source: SizedStream, path: Path) -> None:
        """Write all of ``source`` into the new, empty file ``path``, which is open as ``descriptor``.

        Raises:
            StorageError: If a write failed; errors of the source pass through unchanged.
        """
        with storage_errors("write", path):
            buffers = self._memory.take(self._buffer_bytes)
        with self._memory.returned(buffers):
            with storage_errors("write", path):
                file = _DirectFile(self._calls, descriptor, self._enter_direct_mode(descriptor), self._remember_refusal)

            def put(number: int, buffer: memoryview, size_bytes: int) -> None:
                with storage_errors("write", path):
                    file.write(buffer, size_bytes)

            def close() -> None:
                with storage_errors("write", path):
                    file.close()

            with Lanes(1, at_end=close) as lanes:
                source.send(put, lanes, buffers)
                lanes.finish()

    def _enter_direct_mode(self, descriptor: int) -> bool:
        if self._refused:
            return False
        try:
            # Not in open(): a file system that refuses O_DIRECT there still leaves the new file behind,
            # and it could not be told from a file of another process.
            self._calls.set_direct(descriptor, True)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._remember_refusal()
            return False
        return True

    def _remember_refusal(self) -> None:
        if not self._refused:
            self._refused.add(True)
            _log.info("this file system does not support direct writes; checkpoints are written through the page cache")


class _DirectFile:
    """Writes one file from its first byte on; every buffer but the last must be written whole."""

    def __init__(self, calls: SystemCalls, descriptor: int, direct: bool, on_refusal: Callable[[], None]) -> None:
        self._calls = calls
        self._direct = direct
        self._on_refusal = on_refusal
        self._written_bytes = 0
        # A duplicate that the writing thread closes. A caller that leaves early (a second Ctrl-C) could close its own
        # descriptor during a write, and the write would go to the next file that gets the number.
        self._descriptor = hide(os.dup(descriptor))

    def write(self, buffer: memoryview, size_bytes: int) -> None:
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

    def close(self) -> None:
        show(self._descriptor)
        os.close(self._descriptor)  # a network file system reports failed writes here

    def _go_on_buffered(self) -> None:
        self._calls.set_direct(self._descriptor, False)
        self._direct = False
