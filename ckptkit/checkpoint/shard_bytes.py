"""Bytes of a shard, from anywhere in it, as many as were asked for.

Guarantees: memory that is filled is filled whole. What was filled is not verified. Files that were fetched ahead take
as much memory as their sizes, until others are or they are let go. Any thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ckptkit.checkpoint.open import missing
from ckptkit.core.parallel import FEW, each_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import ShardEntry
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage


class ShardBytes:
    """Reads the files of a checkpoint.

    Args:
        storage: The run root.
        name: The checkpoint, for telling a removed one from a corrupt one.
        report: Called with a number of bytes whenever so many more have been read.
    """

    def __init__(self, storage: Storage, name: CheckpointName, report: Callable[[int], None] | None = None) -> None:
        self._storage = storage
        self._name = name
        self._report = report
        self._ahead: dict[str, memoryview] = {}
        self.window_bytes = storage.window_bytes

    def fill(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        """Fill ``buffers`` with the bytes from ``start`` on; returns how many.

        Raises:
            CheckpointNotFoundError: If the checkpoint was removed meanwhile.
            CorruptCheckpointError: If the file is missing or too short; names it.
            StorageError: If it could not be read.
        """
        count = self._copy(shard, buffers, start) if shard.key in self._ahead else self._read(shard, buffers, start)
        if self._report is not None:
            self._report(count)
        return count

    def batches(self, shards: Sequence[ShardEntry]) -> Iterator[Sequence[ShardEntry]]:
        """``shards`` in order: as many at once as fit into a window, or one."""
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
        """A context in which whole files were read beside each other, where one by one would take long.

        Raises:
            CkptKitError: As `fill`.
        """
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
        return at - start

    def _read(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        wanted = sum(map(len, buffers))
        try:
            count = self._storage.read_into(shard.key, buffers, start)
        except FileNotFoundError as error:
            raise missing(self._storage, self._name, shard.key) from error
        if count != wanted:
            raise CorruptCheckpointError(f"{shard.key} ends at byte {start + count}, expected {shard.size_bytes}")
        return count
