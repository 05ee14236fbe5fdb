"""Reads the files of a checkpoint: any bytes, any bytes of verified files, or a whole file for a copy.

`ShardBytes` reads bytes from anywhere in a shard. Guarantees: it fills the given memory completely. It does not verify
the bytes. Files that were fetched ahead take as much memory as their sizes, until others are fetched or they are
released. Threads: any; `ShardBytes.fill` several at once.

`ProvenFiles` reads bytes from anywhere in files that it also verifies. Guarantees: each file that was read from is read
once from end to end, and its digest is compared before `ProvenFiles.end` returns. Bytes that were returned earlier may
be wrong until then. In file order, each byte is read once; a read further back reads its bytes again. At most `_OPEN`
windows are in memory. One thread.

`SourceFile` streams a file to another storage and verifies it on the way. Guarantees: it delivers the last byte only
if the digest of all bytes matches, so no storage can complete a wrong file. It tells a file that is missing from one
whose checkpoint was removed. One thread.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import xxhash

from ckptkit.checkpoint.open import check_digest, missing
from ckptkit.checkpoint.reading import reread_if_corrupt
from ckptkit.core.worker import FEW, each_of
from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.documents import FileEntry, ShardEntry
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage

_LANES = 4  # more would compete for the memory's bandwidth
_OPEN = 2
_WINDOW_BYTES = 32 << 20


class ShardBytes:
    """Reads bytes of the shards of a checkpoint without verifying them."""

    def __init__(self, storage: Storage, name: CheckpointName, report: Callable[[int], None] | None = None) -> None:
        self._storage = storage
        self._name = name
        self._report = report
        self._untold: deque[int] = deque()
        self._may_tell = deque([True])  # whoever takes it tells; not a lock, which Ctrl-C may leave taken (ADR 17)
        self._ahead: dict[str, memoryview] = {}
        self.window_bytes = storage.window_bytes
        # A remote storage reads a window in lanes of its own.
        self.lanes = 1 if storage.is_remote else min(_LANES, os.cpu_count() or 1)

    def fill(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        """Fill ``buffers`` with the bytes from ``start`` on; return how many."""
        count = self._copy(shard, buffers, start) if shard.key in self._ahead else self._read(shard, buffers, start)
        self._untold.append(count)
        self.tell()
        return count

    def tell(self) -> None:
        """Report what was read, unless another thread is about to; call it when all threads have ended, too."""
        try:
            self._may_tell.pop()
        except IndexError:
            return
        try:
            while self._untold:
                count = self._untold.popleft()
                if self._report is not None:
                    self._report(count)
        finally:
            self._may_tell.append(True)

    def batches(self, shards: Sequence[ShardEntry]) -> Iterator[Sequence[ShardEntry]]:
        """Group ``shards``, in order: each group fits into a window, or is one shard."""
        batch: list[ShardEntry] = []
        filled = 0
        for shard in shards:
            if batch and filled + shard.size_bytes > self.window_bytes:
                yield batch
                batch, filled = [], 0
            batch.append(shard)
            filled += shard.size_bytes
        if batch:
            yield batch

    @contextmanager
    def fetched(self, batch: Sequence[ShardEntry]) -> Iterator[None]:
        """Hold the files of ``batch`` in memory, read in parallel, if reading them one by one would take long."""
        if self._storage.is_remote and len(batch) > FEW:
            self._ahead = dict(zip((shard.key for shard in batch), each_of(batch, self._whole), strict=True))
        try:
            yield
        finally:
            self._ahead = {}

    def _whole(self, shard: ShardEntry) -> memoryview:
        memory = memoryview(bytearray(shard.size_bytes))
        self._read(shard, [memory], 0)
        return memory

    def _copy(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        at = start
        for buffer in buffers:
            buffer[:] = self._ahead[shard.key][at : at + len(buffer)]
            at += len(buffer)
        if at == shard.size_bytes:
            del self._ahead[shard.key]  # whoever reads it once more asks the storage
        return at - start

    def _read(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        def read() -> int:
            count = self._storage.read_into(shard.key, buffers, start)
            if count != sum(map(len, buffers)):
                raise CorruptCheckpointError(f"{shard.key} ends at byte {start + count}, expected {shard.size_bytes}")
            return count

        try:
            return reread_if_corrupt(read)
        except FileNotFoundError as error:
            raise missing(self._storage, self._name, shard.key) from error


class _OpenFile:
    """Reads a file from its beginning to its end, window by window."""

    def __init__(self, files: ShardBytes, shard: ShardEntry) -> None:
        self._files = files
        self.shard = shard
        self._hasher = xxhash.xxh3_128()
        self._memory = memoryview(bytearray(min(files.window_bytes, _WINDOW_BYTES, shard.size_bytes)))
        self._start = self._end = 0

    def read(self, start: int, into: memoryview) -> None:
        if start < self._start:  # these bytes have left the window
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
        """Read the rest and compare the digest; if only the first reading was wrong, its bytes are in use already."""
        try:
            self._finish()
        except CorruptCheckpointError as error:
            _OpenFile(self._files, self.shard)._finish()
            raise StorageError(f"{error}, but is intact when it is read once more. Run the same again") from error

    def _finish(self) -> None:
        while self._end < self.shard.size_bytes:
            self._advance()
        check_digest(self.shard, self._hasher.hexdigest())

    def _advance(self) -> None:
        self._start, self._end = self._end, min(self._end + len(self._memory), self.shard.size_bytes)
        part = self._memory[: self._end - self._start]
        self._files.fill(self.shard, [part], self._start)
        self._hasher.update(part)


class ProvenFiles:
    """Reads and verifies the files of one checkpoint."""

    def __init__(self, storage: Storage, name: CheckpointName, report: Callable[[int], None]) -> None:
        self._files = ShardBytes(storage, name, report)
        self._open: dict[str, _OpenFile] = {}
        self._done: set[str] = set()

    def read(self, shard: ShardEntry, start: int, into: memoryview) -> None:
        if shard.key in self._done:
            self._files.fill(shard, [into], start)
            return
        if shard.key not in self._open:
            while len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            self._open[shard.key] = _OpenFile(self._files, shard)
        self._open[shard.key].read(start, into)

    def end(self) -> None:
        """Verify every file that was read from; raise as `read` does."""
        for key in tuple(self._open):
            self._close(key)

    def _close(self, key: str) -> None:
        self._open.pop(key).end()
        self._done.add(key)


class SourceFile:
    """Streams one file and verifies it; implements `ckptkit.storage.ByteStream`."""

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
        done = 0
        while done < len(buffer) and (self._rest or self._read_bytes < self._file.size_bytes):
            if not self._rest:
                part = min(self._storage.window_bytes, self._file.size_bytes - self._read_bytes)
                if len(buffer) - done >= part:
                    self._fill(buffer[done : done + part])
                    done += part
                    continue
                # The target's buffers may be smaller than the reads that the source needs for full speed.
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
