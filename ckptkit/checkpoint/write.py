"""Writes the files of one checkpoint except COMMIT: each rank its shards and document, rank 0 the manifest.

Every byte is digested while it is written, and each file is durable before the file that records its digest is begun. A
frozen shard that a checkpoint refers to was written whole by the same attempt; a leaf declared frozen that changes is
noticed before a checkpoint refers to it. The writer thread only, but for `Staged.advance`.
"""

from __future__ import annotations

import io
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import xxhash
from pydantic import JsonValue

from ckptkit.checkpoint.receipts import Receipt, receipt_of
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import sampled
from ckptkit.core.text import some
from ckptkit.errors import StateMismatchError, StorageError
from ckptkit.format.documents import (
    MAX_BLOCK_BYTES,
    MAX_DOCUMENT_BYTES,
    AttemptDocument,
    Blocks,
    Commit,
    Cost,
    FileEntry,
    Manifest,
    RankManifest,
    ShardEntry,
    digest_of,
    encode,
)
from ckptkit.format.layout import CheckpointName, frozen_folder
from ckptkit.format.shards import Shard
from ckptkit.format.versions import versions
from ckptkit.storage import ByteStream, Storage
from ckptkit.storage.capacity import in_pages


class Staged(Protocol):
    @property
    def progress(self) -> Progress: ...

    @property
    def state(self) -> Mapping[str, JsonValue]: ...

    @property
    def shards(self) -> tuple[Shard, ...]: ...

    @property
    def samples(self) -> Mapping[str, str]:
        """What `sample_of` gave at the capture for leaves that may change before they are read, by name."""

    @property
    def cost(self) -> SaveCost: ...

    @property
    def by_slices(self) -> bool:
        """Whether a file whose memory belongs to training can be read only once."""

    def open_shard(self, number: int, *, last: bool = True) -> ByteStream:
        """Read file ``number`` from its start; ``last`` means that it is not read again."""

    def release(self) -> None: ...

    def advance(self, micro_steps_left: int) -> bool:
        """Give the writer what it may wait for, as far as there is room."""


PIECE_BYTES = 4 << 20  # each piece takes the interpreter lock twice, and training needs the lock too


class LeafDigests:
    def __init__(self, shard: Shard, *, whole: bool = True) -> None:
        self.by_name: dict[str, str] = {}
        self.samples: dict[str, str] = {}
        self._leaves = [(leaf.name, offset, leaf.size_bytes) for leaf, offset in shard.offsets_bytes()]
        self._whole = whole
        self._next = 0
        self._at = 0
        self._hasher = xxhash.xxh3_128()
        self._sampler = xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        until = self._at + len(data)
        while self._next < len(self._leaves):
            name, offset, size_bytes = self._leaves[self._next]
            for start, stop in sampled(size_bytes):
                self._sampler.update(self._part(data, offset + start, offset + stop))
            if self._whole:
                self._hasher.update(self._part(data, offset, offset + size_bytes))
            if offset + size_bytes > until:
                break
            self.samples[name] = self._sampler.hexdigest()
            self._sampler.reset()
            if self._whole:
                self.by_name[name] = self._hasher.hexdigest()
                self._hasher.reset()
            self._next += 1
        self._at = until

    def _part(self, data: memoryview, start: int, stop: int) -> memoryview:
        return data[max(start, self._at) - self._at : max(0, stop - self._at)]


class BlockDigests:
    def __init__(self, block_bytes: int = MAX_BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._digests: list[str] = []
        self._hasher = xxhash.xxh3_128()
        self._filled = 0

    def update(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            part = data[at : at + self._block_bytes - self._filled]
            self._hasher.update(part)
            at += len(part)
            self._filled += len(part)
            if self._filled == self._block_bytes:
                self._digests.append(self._hasher.hexdigest())
                self._hasher.reset()
                self._filled = 0

    def result(self) -> Blocks:
        """Return the digests for all bytes so far; the last block may be shorter."""
        rest = [self._hasher.hexdigest()] if self._filled else []
        return Blocks(size_bytes=self._block_bytes, digests=[*self._digests, *rest])


class DigestingStream:
    def __init__(
        self,
        inner: ByteStream,
        *,
        leaves: LeafDigests | None = None,
        blocks: BlockDigests | None = None,
        cost: SaveCost | None = None,
    ) -> None:
        self._inner = inner
        self._also = [digests for digests in (leaves, blocks) if digests is not None]
        self._cost = cost
        self._hasher = xxhash.xxh3_128()

    def readinto(self, buffer: memoryview, /) -> int:
        begun = time.perf_counter()
        filled = 0
        while filled < len(buffer):
            piece = buffer[filled : filled + PIECE_BYTES]
            count = self._inner.readinto(piece)
            self._hasher.update(piece[:count])
            for digests in self._also:
                digests.update(piece[:count])
            filled += count
            if count < len(piece):
                break
        if self._cost is not None:
            self._cost.digest_seconds += time.perf_counter() - begun
            self._cost.streamed_bytes += filled
        return filled

    def exhaust(self, size_bytes: int) -> str:
        """Read the whole stream of ``size_bytes`` only for its digest, and return that."""
        # Allocate no more than needed: every save does this, and larger buffers fragment the process's memory.
        piece = memoryview(bytearray(min(PIECE_BYTES, size_bytes + 1)))
        while self.readinto(piece) == len(piece):
            pass
        return self.digest()

    def digest(self) -> str:
        return self._hasher.hexdigest()


def _store(
    storage: Storage, key: str, staged: Staged, number: int, leaves: LeafDigests | None
) -> tuple[str, Blocks | None]:
    """Write shard ``number`` at ``key``, and digest it on the way; return its digest, and those of its blocks."""
    shard = staged.shards[number]
    blocks = BlockDigests() if shard.has_blocks else None
    stream = DigestingStream(staged.open_shard(number), leaves=leaves, blocks=blocks, cost=staged.cost)
    storage.write(key, stream, shard.size_bytes)
    return stream.digest(), None if blocks is None else blocks.result()


_FROZEN = (
    "training changed parameters that are declared frozen: {}. This save was abandoned; later saves store them in "
    "every checkpoint. Remove them from frozen=."
)
_IN_PLACE = (
    "{} changed before an update, while a save read it in place. This save was abandoned; later saves of this process "
    "copy it at once. Normal if the forward pass writes to it; if a loop or a callback does, call fence() of the loop "
    "or the manager first"
)


class FrozenShards:
    def __init__(self, storage: Storage, attempt: AttemptDocument, check_fence: Callable[[], object]) -> None:
        self._storage = storage
        self._check_fence = check_fence
        self._folder = frozen_folder(attempt.attempt)
        self._written: dict[tuple[str, ...], tuple[str, Blocks | None]] = {}  # digests, by the leaves
        self._digests: dict[str, str] = {}  # of leaves
        self.demoted: frozenset[str] = frozenset()
        self.written_bytes = 0

    @property
    def settled(self) -> frozenset[str]:
        return frozenset(name for names in self._written for name in names)

    def share(self, staged: Staged, number: int) -> tuple[str, str, Blocks | None]:
        """Write shard ``number`` unless this attempt already has; return its key, its digest and its block digests."""
        shard = staged.shards[number]
        names = tuple(leaf.name for leaf in shard.leaves)
        known = self._written.get(names)
        if known is not None:
            now = LeafDigests(shard)
            DigestingStream(staged.open_shard(number), leaves=now).exhaust(shard.size_bytes)
            self.refuse_changed(self._digests, now.by_name, _FROZEN)
            if self._is_there(known[0]):
                return self._key(known[0]), *known
            del self._written[names]
            if staged.by_slices:
                raise StorageError(
                    f"{self._key(known[0])}, which this process wrote, is missing: a part of the run was deleted. This "
                    "save was abandoned; the next one writes the file again."
                )
        written = self._written[names] = self._write(staged, number)
        self.written_bytes += shard.size_bytes
        return self._key(written[0]), *written

    def _write(self, staged: Staged, number: int) -> tuple[str, Blocks | None]:
        shard = staged.shards[number]
        before, written = LeafDigests(shard), LeafDigests(shard)
        digest = DigestingStream(staged.open_shard(number, last=False), leaves=before).exhaust(shard.size_bytes)
        if self._is_there(digest):
            # A failed write may have left a complete file that is not durable; no commit refers to it. Check the fence
            # first: if the run was removed and begun anew under this number, the shard belongs to the other job.
            self._check_fence()
            self._storage.delete([self._key(digest)])
        _, blocks = _store(self._storage, self._key(digest), staged, number, written)
        self.refuse_changed(before.by_name, written.by_name, _FROZEN)
        self.refuse_changed(staged.samples, written.samples, _FROZEN)
        self._digests.update(written.by_name)
        return digest, blocks

    def _is_there(self, digest: str) -> bool:
        return f"{digest}.safetensors" in self._storage.list(self._folder).files

    def _key(self, digest: str) -> str:
        return f"{self._folder}/{digest}.safetensors"

    def refuse_changed(self, before: Mapping[str, str], now: Mapping[str, str], words: str = _IN_PLACE) -> None:
        """Compare the digests of leaves that were to stay; those that are not in ``before`` are not compared."""
        changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
        if changed:
            self.demoted |= set(changed)
            raise StateMismatchError(words.format(some(changed)))


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
    settled, shards = frozen.settled, request.staged.shards
    tables_bytes = 2 * sum(len(shard.header) for shard in shards)
    new = (shard for shard in shards if not (shard.frozen and settled.issuperset(leaf.name for leaf in shard.leaves)))
    return sum(in_pages(shard.size_bytes) for shard in new) + in_pages(tables_bytes) + _DOCUMENTS * in_pages(1)


def write_part(
    storage: Storage, attempt: AttemptDocument, request: SaveRequest, frozen: FrozenShards, rank: int
) -> Receipt:
    name, staged, cost = request.name, request.staged, request.staged.cost
    entries: list[ShardEntry] = []
    numbers: Counter[str] = Counter()
    begun = time.perf_counter()
    for place, shard in enumerate(staged.shards):
        if shard.frozen:
            key, digest, blocks = frozen.share(staged, place)
        else:
            key = f"{name.rank_folder(rank)}/{shard.role}-{numbers[shard.role]:03d}.safetensors"
            numbers[shard.role] += 1
            is_sampled = any(leaf.name in staged.samples for leaf in shard.leaves)
            leaves = LeafDigests(shard, whole=False) if is_sampled else None
            digest, blocks = _store(storage, key, staged, place, leaves)
            if leaves is not None:
                frozen.refuse_changed(staged.samples, leaves.samples)
        entries.append(shard.entry(key, digest, blocks))
    cost.write_seconds = time.perf_counter() - begun - cost.digest_seconds
    document = RankManifest(
        checkpoint=str(name),
        rank=rank,
        token=attempt.token,
        save_number=request.number,
        shards=entries,
        state=dict(staged.state),
    )
    return receipt_of(name, document, _write_document(storage, name.rank_key(rank), encode(document)))


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
        size_bytes=sum(receipt.all_bytes for receipt in receipts),
        metrics=stored_metrics(request.metrics),
        rank_files=[receipt.file for receipt in receipts],
        cost=Cost.model_validate(request.staged.cost.as_numbers()),
        libraries=versions(),
    )
    entry = _write_document(storage, name.manifest_key, encode(manifest))
    return Commit(token=attempt.token, manifest_digest=entry.digest, manifest_size_bytes=entry.size_bytes).sealed()


def stored_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return ``metrics`` as a manifest holds them: null instead of a number that is not finite."""
    return {key: value if math.isfinite(value) else None for key, value in metrics.items()}


def _write_document(storage: Storage, key: str, data: bytes) -> FileEntry:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{key} would have {len(data)} bytes; readers accept at most {MAX_DOCUMENT_BYTES}")
    storage.write(key, io.BytesIO(data), len(data))
    return FileEntry(key=key, size_bytes=len(data), digest=digest_of(data))
