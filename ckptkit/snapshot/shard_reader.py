"""Reads the bytes of one shard of a window in order.

Guarantees: those of the window's ``read``. Writer thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ckptkit.snapshot.buffers import Bytes
from ckptkit.snapshot.extent import Extent


class ReadsExtents(Protocol):
    """Gives the bytes of an extent."""

    def read(self, extent: Extent, at: int, out: Bytes, *, last: bool) -> None:
        """Fill ``out`` from byte ``at`` of ``extent`` on."""
        ...


class ShardReader:
    """Implements `ckptkit.storage.ByteStream`.

    Args:
        window: Gives the bytes.
        extents: The contents of the shard, in file order.
        last: Whether the shard is not read again, so that its buffers can be reused.
    """

    def __init__(self, window: ReadsExtents, extents: Sequence[Extent], *, last: bool) -> None:
        self._window = window
        self._extents = extents
        self._last = last
        self._next = 0
        self._at = 0

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill ``buffer``; returns the number of bytes, less than its length only at the end."""
        out = np.frombuffer(buffer, np.uint8)
        done = 0
        while done < len(out) and self._next < len(self._extents):
            extent = self._extents[self._next]
            count = min(len(out) - done, extent.size_bytes - self._at)
            self._window.read(extent, self._at, out[done : done + count], last=self._last)
            done += count
            self._at += count
            if self._at == extent.size_bytes:
                self._next, self._at = self._next + 1, 0
        return done
