"""Computes the digests of a shard while it is streamed to the storage.

Guarantees: a digest covers exactly the bytes that were handed out. Threads: the writer thread only.
"""

from __future__ import annotations

import time

import xxhash

from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import sampled
from ckptkit.format.documents import MAX_BLOCK_BYTES, Blocks
from ckptkit.format.shards import Shard
from ckptkit.storage import ByteStream

PIECE_BYTES = 4 << 20  # each piece takes the interpreter lock twice, and training needs the lock too


class LeafDigests:
    """Computes the digests of the leaves of ``shard`` from the bytes of its file, in order."""

    def __init__(self, shard: Shard, *, whole: bool = True) -> None:
        self.found: dict[str, str] = {}
        self.samples: dict[str, str] = {}
        self._leaves = [
            (
                leaf.name,
                [(offset + start, offset + stop) for start, stop in sampled(leaf.size_bytes)],
                offset,
                leaf.size_bytes,
            )
            for leaf, offset in shard.offsets_bytes()
        ]
        self._whole = whole
        self._next = 0
        self._at = 0
        self._hasher = xxhash.xxh3_128()
        self._sampler = xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        until = self._at + len(data)
        while self._next < len(self._leaves):
            name, ranges, offset, size_bytes = self._leaves[self._next]
            for start, stop in ranges:
                self._sampler.update(self._part(data, start, stop))
            if self._whole:
                self._hasher.update(self._part(data, offset, offset + size_bytes))
            if offset + size_bytes > until:
                break
            self.samples[name] = self._sampler.hexdigest()
            self._sampler.reset()
            if self._whole:
                self.found[name] = self._hasher.hexdigest()
                self._hasher.reset()
            self._next += 1
        self._at = until

    def _part(self, data: memoryview, start: int, stop: int) -> memoryview:
        return data[max(start, self._at) - self._at : max(0, stop - self._at)]


class BlockDigests:
    """Computes the digests of the blocks of a file from its bytes, in order."""

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

    def found(self) -> Blocks:
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
        self._also = [one for one in (leaves, blocks) if one is not None]
        self._cost = cost
        self._hasher = xxhash.xxh3_128()

    def readinto(self, buffer: memoryview, /) -> int:
        begun = time.perf_counter()
        filled = 0
        while filled < len(buffer):
            piece = buffer[filled : filled + PIECE_BYTES]
            count = self._inner.readinto(piece)
            self._hasher.update(piece[:count])
            for one in self._also:
                one.update(piece[:count])
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
