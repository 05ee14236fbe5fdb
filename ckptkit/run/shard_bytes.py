"""Bytes of a shard, from anywhere in it, as many as were asked for.

Guarantees: memory that is filled is filled whole. What was filled is not verified. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptkit.errors import CorruptCheckpointError
from ckptkit.manifest import ShardEntry
from ckptkit.run.names import CheckpointName
from ckptkit.run.read import missing
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
        self.window_bytes = storage.window_bytes

    def fill(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        """Fill ``buffers`` with the bytes from ``start`` on; returns how many.

        Raises:
            CheckpointNotFoundError: If the checkpoint was removed meanwhile.
            CorruptCheckpointError: If the file is missing or too short; names it.
            StorageError: If it could not be read.
        """
        wanted = sum(map(len, buffers))
        try:
            count = self._storage.read_into(shard.key, buffers, start)
        except FileNotFoundError as error:
            raise missing(self._storage, self._name, shard.key) from error
        if count != wanted:
            raise CorruptCheckpointError(f"{shard.key} ends at byte {start + count}, expected {shard.size_bytes}")
        if self._report is not None:
            self._report(count)
        return count
