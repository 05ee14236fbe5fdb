"""A shard as the stream that a storage writes from.

Guarantees: the digest is of the very bytes that were handed out, whatever became of the arrays since. One
thread at a time; the arrays must not change while they are read.
"""

from __future__ import annotations

import numpy as np
import xxhash

from ckptkit.tensors import Shard

PIECE_BYTES = 256 << 10  # copied, then digested while it is still in the cache of its core


class ShardStream:
    """The bytes of ``shard``'s file, each handed out once.

    Args:
        shard: What to read.
    """

    def __init__(self, shard: Shard) -> None:
        self._chunks = shard.chunks()
        self._chunk = memoryview(b"")
        self._hasher = xxhash.xxh3_128()

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer`` with the next bytes; returns how many, fewer than its length only at the end."""
        filled = 0
        while filled < len(buffer):
            if not self._chunk:
                following = next(self._chunks, None)
                if following is None:
                    break
                self._chunk = following
                continue
            size = min(len(self._chunk), len(buffer) - filled, PIECE_BYTES)
            piece = buffer[filled : filled + size]
            # A slice assignment would hold the GIL, and with it the training, during the copy.
            np.copyto(np.frombuffer(piece, np.uint8), np.frombuffer(self._chunk[:size], np.uint8))
            self._hasher.update(piece)
            self._chunk = self._chunk[size:]
            filled += size
        return filled

    def digest(self) -> str:
        """xxh3_128 of all bytes handed out so far."""
        return self._hasher.hexdigest()
