"""Writes the files of one checkpoint except COMMIT: each rank its shards and document, rank 0 the manifest.

Guarantees: every byte is digested while it is written, and each file is durable before the file that holds its digest
is begun. Nothing here makes the checkpoint visible; `ckptkit.checkpoint.commit` does that. Threads: the writer thread
only.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ckptkit.checkpoint.digesting import BlockDigests, DigestingStream, LeafDigests
from ckptkit.checkpoint.frozen import FrozenShards
from ckptkit.checkpoint.receipts import Receipt
from ckptkit.checkpoint.staged import Staged
from ckptkit.format.document_json import encode
from ckptkit.format.documents import (
    MAX_DOCUMENT_BYTES,
    AttemptDocument,
    Commit,
    Cost,
    FileEntry,
    Manifest,
    RankManifest,
    ShardEntry,
    digest_of,
)
from ckptkit.format.layout import CheckpointName
from ckptkit.format.versions import versions
from ckptkit.storage import Storage
from ckptkit.storage.capacity import in_pages

_DOCUMENTS = 4  # small files beside the shards, with the temporary one of COMMIT


@dataclass(frozen=True)
class SaveRequest:
    name: CheckpointName
    staged: Staged
    metrics: Mapping[str, float]
    created_at: datetime
    number: int


def needed_bytes(request: SaveRequest, frozen: FrozenShards) -> int:
    """Return how many bytes of memory `write_part` takes where the run root is in memory."""
    settled = frozen.settled
    shards = [
        shard
        for shard in request.staged.shards
        if not (shard.frozen and settled.issuperset(leaf.name for leaf in shard.leaves))
    ]
    tables_bytes = 2 * sum(len(shard.header) for shard in request.staged.shards)
    return sum(in_pages(shard.size_bytes) for shard in shards) + in_pages(tables_bytes) + _DOCUMENTS * in_pages(1)


def write_part(
    storage: Storage, attempt: AttemptDocument, request: SaveRequest, frozen: FrozenShards, rank: int
) -> Receipt:
    """Write the shards of ``rank`` and its document; return the receipt for them without writing it."""
    name = request.name
    entries = _write_shards(storage, request, frozen, rank)
    document = RankManifest(
        checkpoint=str(name),
        rank=rank,
        token=attempt.token,
        save_number=request.number,
        shards=entries,
        state=dict(request.staged.state),
    )
    file = _write_document(storage, name.rank_key(rank), encode(document))
    own = name.rank_folder(rank)
    return Receipt(
        rank=rank,
        save_number=request.number,
        file=file,
        own_bytes=sum(entry.size_bytes for entry in entries if entry.key.startswith(f"{own}/")),
        all_bytes=sum(entry.size_bytes for entry in entries),
    )


def write_manifest(
    storage: Storage, attempt: AttemptDocument, request: SaveRequest, receipts: Sequence[Receipt]
) -> Commit:
    """Write the manifest for the parts of all ranks, and return the COMMIT that would publish it."""
    name = request.name
    manifest = Manifest(
        checkpoint=str(name),
        created_at=request.created_at.isoformat(),
        progress=request.staged.progress,
        world_size=len(receipts),
        size_bytes=sum(one.all_bytes for one in receipts),
        metrics=stored_metrics(request.metrics),
        rank_files=[one.file for one in receipts],
        cost=Cost.model_validate(request.staged.cost.as_numbers()),
        libraries=versions(),
    )
    entry = _write_document(storage, name.manifest_key, encode(manifest))
    return Commit(token=attempt.token, manifest_digest=entry.digest, manifest_size_bytes=entry.size_bytes).sealed()


def stored_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return ``metrics`` as a manifest holds them: null instead of a number that is not finite."""
    return {key: value if math.isfinite(value) else None for key, value in metrics.items()}


def _write_shards(storage: Storage, request: SaveRequest, frozen: FrozenShards, rank: int) -> list[ShardEntry]:
    folder = request.name.rank_folder(rank)
    entries = []
    numbers: dict[str, int] = {}
    cost = request.staged.cost
    begun = time.perf_counter()
    for place, shard in enumerate(request.staged.shards):
        if shard.frozen:
            key, digest, blocks = frozen.share(request.staged, place)
        else:
            number = numbers[shard.role] = numbers.get(shard.role, -1) + 1
            key = f"{folder}/{shard.role}-{number:03d}.safetensors"
            block_digests = BlockDigests() if shard.has_blocks else None
            known = request.staged.samples
            leaves = LeafDigests(shard, whole=False) if any(leaf.name in known for leaf in shard.leaves) else None
            stream = DigestingStream(request.staged.open_shard(place), leaves=leaves, blocks=block_digests, cost=cost)
            storage.write(key, stream, shard.size_bytes)
            if leaves is not None:
                frozen.refuse_changed(known, leaves.samples)
            digest = stream.digest()
            blocks = None if block_digests is None else block_digests.found()
        entries.append(shard.entry(key, digest, blocks))
    cost.write_seconds = time.perf_counter() - begun - cost.digest_seconds
    return entries


def _write_document(storage: Storage, key: str, data: bytes) -> FileEntry:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{key} would have {len(data)} bytes; readers accept at most {MAX_DOCUMENT_BYTES}")
    storage.write(key, io.BytesIO(data), len(data))
    return FileEntry(key=key, size_bytes=len(data), digest=digest_of(data))
