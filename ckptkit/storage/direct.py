"""Writes new files past the page cache, in a thread beside the one that produces the bytes.

A buffered write costs training a core and its page cache; a direct write needs hardly any CPU, but aligned memory.
After `DirectWriter.write`, the file holds the bytes of the source without padding, and is not fsynced; where direct
writes are refused, they went through the page cache. After an error, it may hold any part of them, and padding. Any
thread.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from ckptkit.core.worker import Lanes
from ckptkit.storage.local_files import storage_errors
from ckptkit.storage.system_calls import SYSTEM, hide, show
from ckptkit.storage.written_stream import ReusedMemory, SizedStream

_log = logging.getLogger("ckptkit")

ALIGNMENT_BYTES = 4096  # a disk with larger blocks refuses direct writes and gets buffered ones
BUFFER_BYTES = 4 << 20  # larger buffers, or more of them, were not faster
BUFFERS = 2
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class DirectWriter:
    """Writes the large files of one storage, and remembers whether its file system accepts direct writes.

    Args:
        buffer_bytes: Size of a buffer, a multiple of `ALIGNMENT_BYTES`.
        buffers: Number of buffers per file. One set is kept; files written at the same time get their own sets.
    """

    def __init__(self, *, buffer_bytes: int = BUFFER_BYTES, buffers: int = BUFFERS) -> None:
        self._buffer_bytes = buffer_bytes
        self._memory = ReusedMemory(buffers)
        self._is_refused = False

    def write(self, descriptor: int, source: SizedStream, path: Path) -> None:
        """Write all of ``source`` into the new, empty file ``path``, which is open as ``descriptor``.

        Raises:
            StorageError: If a write failed; errors of the source pass through unchanged.
        """
        with self._memory.lent(self._buffer_bytes) as buffers:
            with storage_errors("write", path):
                file = _DirectFile(self, descriptor, path)
            with Lanes(1, at_end=file.close) as lanes:
                source.send(file.write, lanes, buffers)
                lanes.finish()

    def begin(self, descriptor: int) -> bool:
        """Set O_DIRECT; return whether the file system accepts it."""
        if self._is_refused:
            return False
        try:
            # Not in open(): a file system that refuses O_DIRECT there still leaves the new file behind,
            # and it could not be told from a file of another process.
            SYSTEM.set_direct(descriptor, True)
        except OSError as error:
            self.refuse(error)
            return False
        return True

    def refuse(self, error: OSError) -> None:
        """Remember that direct writes are refused, if ``error`` says so; raise any other error."""
        if error.errno not in _REFUSALS:
            raise error
        if not self._is_refused:
            self._is_refused = True
            _log.info("this file system does not support direct writes; checkpoints are written through the page cache")


class _DirectFile:
    """Writes one file from its first byte on; every buffer but the last must be written whole."""

    def __init__(self, writer: DirectWriter, descriptor: int, path: Path) -> None:
        self._writer, self._path = writer, path
        self._is_direct = writer.begin(descriptor)
        self._written_bytes = 0
        # A descriptor of its own, which its thread closes. A caller that leaves early (a second Ctrl-C) could close its
        # own during a write, and the write would go to the next file that gets the number.
        self._descriptor = hide(os.dup(descriptor))

    def write(self, number: int, buffer: memoryview, size_bytes: int) -> None:
        with storage_errors("write", self._path):
            padded_bytes = size_bytes + -size_bytes % ALIGNMENT_BYTES
            buffer[size_bytes:padded_bytes] = bytes(padded_bytes - size_bytes)
            done = 0
            while done < size_bytes:
                end = padded_bytes if self._is_direct else size_bytes
                try:
                    count = SYSTEM.pwrite(self._descriptor, buffer[done:end], self._written_bytes + done)
                except OSError as error:
                    if not self._is_direct:
                        raise
                    self._writer.refuse(error)
                    self._go_on_buffered()
                    continue
                if not count:
                    raise OSError(errno.EIO, "the file system wrote nothing")
                done += count
                # After a short write, memory and file may be unaligned, and a direct write would be refused.
                if self._is_direct and done < size_bytes and done % ALIGNMENT_BYTES:
                    self._go_on_buffered()
            self._written_bytes += size_bytes
            if done > size_bytes:
                SYSTEM.truncate(self._descriptor, self._written_bytes)

    def close(self) -> None:
        show(self._descriptor)
        with storage_errors("write", self._path):
            os.close(self._descriptor)  # a network file system reports failed writes here

    def _go_on_buffered(self) -> None:
        SYSTEM.set_direct(self._descriptor, False)
        self._is_direct = False
