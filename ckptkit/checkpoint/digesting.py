"""A shard on its way to the storage, digested as it goes.

Guarantees: the digest is of the very bytes that were handed out. Writer thread only.
"""

from __future__ import annotations

import time

import xxhash

from ckptkit.core.save_report import SaveCost
from ckptkit.format.documents import MAX_BLOCK_BYTES, Blocks
from ckptkit.format.shards import Shard
from ckptkit.storage import ByteStream

PIECE_BYTES = 4 << 20  # each piece costs two turns at the interpreter lock, which training wants as well


class LeafDigests:
    """Digests of the leaves of ``shard``, fed with the bytes of its file in order.

    Attributes:
        found: xxh3_128 by name, of every leaf that is complete.
    """

    def __init__(self, shard: Shard) -> None:
        self.found: dict[str, str] = {}
        self._ends = [(leaf.name, offset, offset + leaf.size_bytes) for leaf, offset in shard.offsets_bytes()]
        self._next = 0
        self._at = 0
        self._hasher = xxhash.xxh3_128()

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        until = self._at + len(data)
        while self._next < len(self._ends):
            name, start, end = self._ends[self._next]
            self._hasher.update(data[max(start, self._at) - self._at : max(0, end - self._at)])
            if end > until:
                break
            self.found[name] = self._hasher.hexdigest()
            self._hasher.reset()
            self._next += 1
        self._at = until


class BlockDigests:
    """Digests of the blocks of a file, fed with its bytes in order.

    Args:
        block_bytes: Of a block.
    """

    def __init__(self, block_bytes: int = MAX_BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._digests: list[str] = []
        self._hasher = xxhash.xxh3_128()
        self._filled = 0

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
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
        """Of all bytes so far, the last block maybe a shorter one."""
        rest = [self._hasher.hexdigest()] if self._filled else []
        return Blocks(size_bytes=self._block_bytes, digests=[*self._digests, *rest])


class DigestingStream:
    """What ``inner`` gives, digested.

    Args:
        inner: The bytes of the file.
        leaves: Fed with them as well.
        blocks: Fed with them as well.
        cost: Where to count bytes and seconds.
    """

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
        """Fill ``buffer`` with the next bytes; returns how many, fewer than its length only at the end."""
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
        """Read all of it, which is ``size_bytes``, to no other end; returns its digest."""
        # No more than it takes: these come and go with every save, and larger ones leave holes in the process's memory.
        piece = memoryview(bytearray(min(PIECE_BYTES, size_bytes + 1)))
        while self.readinto(piece) == len(piece):
            pass
        return self.digest()

    def digest(self) -> str:
        """xxh3_128 of all bytes handed out so far."""
        return self._hasher.hexdigest()
