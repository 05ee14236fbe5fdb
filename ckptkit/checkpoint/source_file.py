"""A file of a checkpoint on its way to another storage, proven as it goes.

Guarantees: the last byte is given only if the digest of all of them agrees, so that no storage can finish a wrong file;
a file that went because its checkpoint was removed is told from one that is missing. One thread.
"""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from ckptkit.checkpoint.open import check_digest, missing
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import FileEntry
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage


class SourceFile:
    """A `ckptkit.storage.ByteStream`.

    Args:
        storage: Where the file lies.
        name: Its checkpoint.
        file: Key, size and digest.
        report: Called with a number of bytes whenever so many more have been read.
    """

    def __init__(
        self,
        storage: Storage,
        name: CheckpointName,
        file: FileEntry,
        report: Callable[[int], None] | None = None,
    ) -> None:
        self._storage = storage
        self._name = name
        self._file = file
        self._report = report
        self._hasher = xxhash.xxh3_128()
        self._read_bytes = 0
        self._window = memoryview(b"")
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes; returns how many, fewer than its length only at the end."""
        done = 0
        while done < len(buffer) and (self._rest or self._read_bytes < self._file.size_bytes):
            if not self._rest:
                part = min(self._storage.window_bytes, self._file.size_bytes - self._read_bytes)
                if len(buffer) - done >= part:
                    self._fill(buffer[done : done + part])
                    done += part
                    continue
                # The target's buffers may be smaller than what the source has to be asked for at full speed.
                self._window = self._window or memoryview(bytearray(part))
                self._rest = self._window[:part]
                self._fill(self._rest)
            count = min(len(buffer) - done, len(self._rest))
            buffer[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        if self._file.size_bytes == 0:
            check_digest(self._file, self._hasher.hexdigest())
        return done

    def _fill(self, memory: memoryview) -> None:
        try:
            count = self._storage.read_into(self._file.key, [memory], self._read_bytes)
        except FileNotFoundError as error:
            raise missing(self._storage, self._name, self._file.key) from error
        self._hasher.update(memory)
        self._read_bytes += count
        if count != len(memory):
            raise CorruptCheckpointError(
                f"{self._file.key} ends at byte {self._read_bytes}, expected {self._file.size_bytes}"
            )
        if self._read_bytes == self._file.size_bytes:
            check_digest(self._file, self._hasher.hexdigest())
        if self._report is not None:
            self._report(count)
