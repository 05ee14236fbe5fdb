"""Bytes of a checkpoint's files, from anywhere in them, of files that are proven all the same.

Guarantees: each file that was touched is read once from end to end, and its digest is compared before `ProvenFiles.end`
returns; what was given out before may be wrong until then. Whoever asks in the order of the files costs each byte one
read; a look back costs its own bytes once more. At most `_OPEN` windows are in memory. One thread.
"""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from ckptkit.checkpoint.open import check_digest
from ckptkit.checkpoint.shard_bytes import ShardBytes
from ckptkit.format.documents import ShardEntry
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage

_OPEN = 2
_WINDOW_BYTES = 32 << 20


class _OpenFile:
    """A file that is read from its beginning to its end, window by window."""

    def __init__(self, files: ShardBytes, shard: ShardEntry) -> None:
        self._files = files
        self.shard = shard
        self._hasher = xxhash.xxh3_128()
        self._memory = memoryview(bytearray(min(files.window_bytes, _WINDOW_BYTES, shard.size_bytes)))
        self._start = self._end = 0

    def read(self, start: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes from ``start`` on."""
        if start < self._start:  # a look back
            count = min(len(into), self._start - start)
            self._files.fill(self.shard, [into[:count]], start)
            start, into = start + count, into[count:]
        while into:
            while start >= self._end:
                self._advance()
            count = min(len(into), self._end - start)
            into[:count] = self._memory[start - self._start : start - self._start + count]
            start, into = start + count, into[count:]

    def end(self) -> None:
        """Read the rest, and compare the digest."""
        while self._end < self.shard.size_bytes:
            self._advance()
        check_digest(self.shard, self._hasher.hexdigest())

    def _advance(self) -> None:
        self._start, self._end = self._end, min(self._end + len(self._memory), self.shard.size_bytes)
        part = self._memory[: self._end - self._start]
        self._files.fill(self.shard, [part], self._start)
        self._hasher.update(part)


class ProvenFiles:
    """The files of one checkpoint.

    Args:
        storage: The run root.
        name: The checkpoint, for telling a removed one from a corrupt one.
        report: Called with a number of bytes whenever so many more have been read.
    """

    def __init__(self, storage: Storage, name: CheckpointName, report: Callable[[int], None]) -> None:
        self._files = ShardBytes(storage, name, report)
        self._open: dict[str, _OpenFile] = {}
        self._done: set[str] = set()

    def read(self, shard: ShardEntry, start: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes of ``shard`` from ``start`` on, which it must have.

        Raises:
            CheckpointNotFoundError: If the checkpoint was removed meanwhile.
            CorruptCheckpointError: If a file is missing or too short, or the digest of one that was read to its end
                differs; names it.
            StorageError: If it could not be read.
        """
        if shard.key in self._done:
            self._files.fill(shard, [into], start)
            return
        if shard.key not in self._open:
            while len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            self._open[shard.key] = _OpenFile(self._files, shard)
        self._open[shard.key].read(start, into)

    def end(self) -> None:
        """Prove whatever was read from; raises as `read` does."""
        for key in tuple(self._open):
            self._close(key)

    def _close(self, key: str) -> None:
        self._open.pop(key).end()
        self._done.add(key)
