"""Committed checkpoints of many ranks, written in one process without a manager."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.checkpoint.write import BlockDigests
from ckptkit.core.placement import Placement
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import Array, Leaf, Lifetime, Role, bytes_of, leaf_of
from ckptkit.format.documents import (
    MAX_BLOCK_BYTES,
    AttemptDocument,
    Cost,
    FileEntry,
    Manifest,
    RankManifest,
    digest_of,
    encode,
)
from ckptkit.format.documents import Commit as CommitDocument
from ckptkit.format.layout import CheckpointName, attempt_key, frozen_folder
from ckptkit.format.shards import SHARD_BYTES, Shard, plan_shards
from ckptkit.snapshot.partition import partition, taken
from support.runs.dict_storage import DictStorage

NAME = CheckpointName(1, 2, 1)
TOKEN = "ab" * 16
ATTEMPT = AttemptDocument(attempt=1, token=TOKEN, parent=None, host="h", created_at="then").sealed()
PROGRESS = Progress(
    epoch=0, batch=9, cycles=2, updates=2, micro_step=1, accumulation_steps=4, batches_delivered=9, cycle_first_batch=8
)


def leaf(
    name: str,
    array: Array,
    placement: Placement = "replicated",
    *,
    role: Role = "weights",
    lifetime: Lifetime = "cycle",
) -> Leaf:
    return leaf_of(name, array, role=role, lifetime=lifetime, placement=placement)


def write_ranks(
    ranks: Sequence[Sequence[Leaf]],
    *,
    states: Sequence[Mapping[str, Any]] = (),
    shard_bytes: int = SHARD_BYTES,
    block_bytes: int = MAX_BLOCK_BYTES,
    save_numbers: Sequence[int] = (),
) -> DictStorage:
    """What each rank holds, saved and committed as `NAME`."""
    storage = DictStorage({attempt_key(1): encode(ATTEMPT)})
    documents = [
        RankManifest(
            checkpoint=str(NAME),
            rank=rank,
            token=TOKEN,
            save_number=save_numbers[rank] if save_numbers else 1,
            shards=_shards(storage, leaves, (rank, len(ranks)), shard_bytes, block_bytes),
            state=dict(states[rank]) if states else {},
        )
        for rank, leaves in enumerate(ranks)
    ]
    commit(storage, documents)
    return storage


def commit(storage: DictStorage, documents: Sequence[RankManifest]) -> None:
    files = []
    for document in documents:
        key = NAME.rank_key(document.rank)
        files.append(_put(storage, key, encode(document)))
    manifest = Manifest(
        checkpoint=str(NAME),
        created_at="then",
        progress=PROGRESS,
        world_size=len(documents),
        size_bytes=sum(shard.size_bytes for document in documents for shard in document.shards),
        metrics={},
        rank_files=files,
        libraries={},
        cost=Cost.model_validate(SaveCost().as_numbers()),
    )
    entry = _put(storage, NAME.manifest_key, encode(manifest))
    sealed = CommitDocument(token=TOKEN, manifest_digest=entry.digest, manifest_size_bytes=entry.size_bytes).sealed()
    storage.files[NAME.commit_key] = encode(sealed)


def opened(storage: DictStorage) -> OpenedCheckpoint:
    return open_checkpoint(storage, NAME, ATTEMPT)


def documents_of(storage: DictStorage) -> list[RankManifest]:
    return list(opened(storage).ranks)


def _put(storage: DictStorage, key: str, data: bytes) -> FileEntry:
    storage.files[key] = data
    return FileEntry(key=key, size_bytes=len(data), digest=digest_of(data))


def _shards(storage, leaves, place, shard_bytes, block_bytes):
    rank, ranks = place
    share = taken(leaves, partition([one.spec for one in leaves], rank, ranks))
    arrays = {one.name: one.array for one in share}
    entries = []
    for number, shard in enumerate(plan_shards([one.spec for one in share], shard_bytes, rank=rank, ranks=ranks)):
        data = bytes_of_file(shard, arrays)
        digest = digest_of(data)
        key = f"{NAME.rank_folder(rank)}/{shard.role}-{number:03d}.safetensors"
        if shard.frozen:
            key = f"{frozen_folder(1)}/{digest}.safetensors"
        blocks = BlockDigests(block_bytes)
        blocks.update(memoryview(data))
        storage.files[key] = data
        entries.append(shard.entry(key, digest, blocks.result() if shard.has_blocks else None))
    return entries


def bytes_of_file(shard: Shard, arrays: Mapping[str, Array]) -> bytes:
    return shard.header + b"".join(bytes_of(np.ascontiguousarray(arrays[one.name])).tobytes() for one in shard.leaves)
