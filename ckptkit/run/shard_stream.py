"""A shard on its way to the storage, digested as it goes.

Guarantees: the digest is of the very bytes that were handed out. Writer thread only.
"""

from __future__ import annotations

import time

import xxhash

from ckptkit.shards import Shard
from ckptkit.storage import ByteStream

PIECE_BYTES = 256 << 10  # copied, then digested while it is still in the cache of its core


class ShardStream:
    """What ``inner`` gives, digested.

    Args:
        inner: The bytes of the file.

    Attributes:
        seconds: Spent on copying and digesting.
    """

    def __init__(self, inner: ByteStream) -> None:
        self._inner = inner
        self._hasher = xxhash.xxh3_128()
        self.seconds = 0.0

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes; returns how many, fewer than its length only at the end."""
        begun = time.perf_counter()
        filled = 0
        while filled < len(buffer):
            piece = buffer[filled : filled + PIECE_BYTES]
            count = self._inner.readinto(piece)
            self._hasher.update(piece[:count])
            filled += count
            if count < len(piece):
                break
        self.seconds += time.perf_counter() - begun
        return filled

    def digest(self) -> str:
        """xxh3_128 of all bytes handed out so far."""
        return self._hasher.hexdigest()


def leaf_digests(shard: Shard, stream: ByteStream) -> dict[str, str]:
    """xxh3_128 of every leaf in ``stream``, which gives the bytes of ``shard``, by name; reads it to its end."""
    piece = memoryview(bytearray(PIECE_BYTES))
    stream.readinto(memoryview(bytearray(len(shard.header))))
    digests = {}
    for leaf in shard.leaves:
        hasher = xxhash.xxh3_128()
        for start in range(0, leaf.size_bytes, PIECE_BYTES):
            part = piece[: min(PIECE_BYTES, leaf.size_bytes - start)]
            stream.readinto(part)
            hasher.update(part)
        digests[leaf.name] = hasher.hexdigest()
    return digests
