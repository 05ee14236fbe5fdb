"""Reads the bytes of an opened checkpoint and proves them against their digests.

Guarantees: no byte is handed out before the digest of its whole file agreed; sizes on storage are compared
before memory is taken, so that a hostile manifest cannot ask for more than what lies there. Any thread.
"""

from __future__ import annotations

import numpy as np
import xxhash

from ckptkit.contents import Contents
from ckptkit.errors import CorruptCheckpointError
from ckptkit.manifest import ShardEntry
from ckptkit.run.names import CheckpointName
from ckptkit.run.read import OpenedCheckpoint, check_digest, missing
from ckptkit.storage import Storage
from ckptkit.tensors import CHUNK_BYTES, DTYPES, Array


def load(storage: Storage, opened: OpenedCheckpoint, rank: int = 0) -> Contents:
    """All that ``rank`` stored, in memory, verified.

    Raises:
        CheckpointNotFoundError: If the checkpoint was removed meanwhile.
        CorruptCheckpointError: If a shard is missing or altered; names it.
    """
    check_sizes(storage, opened)
    document = opened.ranks[rank]
    tensors: dict[str, Array] = {}
    dtypes: dict[str, str] = {}
    roles: dict[str, str] = {}
    for shard in document.shards:
        data = np.empty(shard.size_bytes, np.uint8)
        _read_verified(storage, opened.name, shard, data.data)
        for entry in shard.tensors:
            bits = data[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
            tensors[entry.name] = bits.view(DTYPES[entry.dtype]).reshape(entry.shape)
            dtypes[entry.name] = entry.dtype
            roles[entry.name] = shard.role
    return Contents(str(opened.name), opened.manifest.progress, tensors, dtypes, roles, document.state)


def verify(storage: Storage, opened: OpenedCheckpoint) -> None:
    """Prove every byte of every rank, in bounded memory; raises as `load` does."""
    check_sizes(storage, opened)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for document in opened.ranks:
        for shard in document.shards:
            _digest_in_chunks(storage, opened.name, shard, buffer)


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


def _read_verified(storage: Storage, name: CheckpointName, shard: ShardEntry, into: memoryview) -> None:
    hasher = xxhash.xxh3_128()
    for start in range(0, shard.size_bytes, CHUNK_BYTES):
        _fill(storage, name, shard, into[start : start + CHUNK_BYTES], start)
        hasher.update(into[start : start + CHUNK_BYTES])
    check_digest(shard, hasher.hexdigest())


def _digest_in_chunks(storage: Storage, name: CheckpointName, shard: ShardEntry, buffer: memoryview) -> None:
    hasher = xxhash.xxh3_128()
    for start in range(0, shard.size_bytes, len(buffer)):
        part = buffer[: min(len(buffer), shard.size_bytes - start)]
        _fill(storage, name, shard, part, start)
        hasher.update(part)
    check_digest(shard, hasher.hexdigest())


def _fill(storage: Storage, name: CheckpointName, shard: ShardEntry, part: memoryview, start: int) -> None:
    try:
        count = storage.read_into(shard.key, part, start)
    except FileNotFoundError as error:
        raise missing(storage, name, shard.key) from error
    if count != len(part):
        raise CorruptCheckpointError(f"{shard.key} ends at byte {start + count}, expected {shard.size_bytes}")
