"""Gives the contents of an opened checkpoint, and proves bytes against their digests.

Guarantees: sizes on storage are compared before memory is taken or a byte is read, so that a hostile manifest cannot
ask for more than what lies there; what `load` has read itself is verified. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ckptkit.contents import Contents, TensorInfo
from ckptkit.errors import CorruptCheckpointError
from ckptkit.run.read import OpenedCheckpoint, missing
from ckptkit.run.stream import ShardStream
from ckptkit.storage import Storage


def load(
    storage: Storage, opened: OpenedCheckpoint, rank: int = 0, *, report: Callable[[int], None] | None = None
) -> Contents:
    """What ``rank`` stored; of its tensors only the small ones that its state refers to have been read.

    Args:
        storage: The run root.
        opened: The checkpoint.
        rank: Whose.
        report: Called with a number of bytes whenever so many more have been read, later on as well.

    Raises:
        CheckpointNotFoundError: If the checkpoint was removed meanwhile.
        CorruptCheckpointError: If a shard is missing or of another size, or one of those read is altered; names it.
    """
    check_sizes(storage, opened)
    document = opened.ranks[rank]
    entries = {
        entry.name: TensorInfo(entry.dtype, tuple(entry.shape), shard.role)
        for shard in document.shards
        for entry in shard.tensors
    }
    stream = ShardStream(storage, opened.name, document.shards, report)
    state_tensors = {name: one.empty() for name, one in entries.items() if one.role == "state"}
    stream.read_into({name: array.reshape(-1).view(np.uint8).data for name, array in state_tensors.items()})
    return Contents(str(opened.name), opened.manifest.progress, entries, document.state, state_tensors, stream)


def verify(storage: Storage, opened: OpenedCheckpoint) -> None:
    """Prove every byte of every rank, in bounded memory; raises as `load` and `Contents.read_into` do."""
    check_sizes(storage, opened)
    for document in opened.ranks:
        ShardStream(storage, opened.name, document.shards).prove()


def check_sizes(storage: Storage, opened: OpenedCheckpoint) -> None:
    """Compare the size of every shard with what lies on storage; raises as `load` does."""
    for document in opened.ranks:
        folders = {shard.key.rpartition("/")[0] for shard in document.shards}
        found = {
            f"{folder}/{file}": size for folder in sorted(folders) for file, size in storage.list(folder).files.items()
        }
        for shard in document.shards:
            if shard.key not in found:
                raise missing(storage, opened.name, shard.key)
            if found[shard.key] != shard.size_bytes:
                raise CorruptCheckpointError(f"{shard.key} has {found[shard.key]} bytes, expected {shard.size_bytes}")
