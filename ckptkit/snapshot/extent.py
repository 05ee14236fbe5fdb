"""Describes a part of a file that is being written: copied bytes, or live memory that is still unchanged.

The module itself guarantees nothing. The pool's condition guards the fields; `ckptkit.snapshot.window` says which
thread touches them when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ckptkit.core.tensors import Array, bytes_of
from ckptkit.snapshot.buffers import Buffer, Bytes


class Piece(NamedTuple):
    """Holds bytes ``[start, stop)`` of an extent, copied into ``buffer`` at ``offset_bytes``."""

    start: int
    stop: int
    buffer: Buffer
    offset_bytes: int


class Extent:
    """Represents consecutive bytes of a shard.

    Attributes:
        size_bytes: Size of the extent.
        held: Whether training never changes its memory: a header, or frozen weights.
        taken_bytes: How far the writer has read; it reads from the front.
        live_from: Bytes below this, and from ``live_to`` on, are in ``pieces``.
        live_to: See ``live_from``.
        pieces: The copied pieces, in no particular order.
    """

    __slots__ = ("_live", "_source", "held", "live_from", "live_to", "pieces", "size_bytes", "taken_bytes")

    def __init__(self, size_bytes: int, source: Array | Callable[[], Array] | None, *, held: bool = False) -> None:
        self.size_bytes = size_bytes
        self.held = held
        self.taken_bytes = 0
        self.live_from = 0
        self.live_to = size_bytes if source is not None else 0
        self.pieces: list[Piece] = []
        self._source = source
        self._live: Bytes | None = None

    @property
    def all_copied(self) -> bool:
        """Whether the writer needs no more live memory of this extent."""
        return max(self.live_from, self.taken_bytes) >= self.live_to

    def live(self) -> Bytes | None:
        """Return the live memory; None after `let_go`. The training thread calls a copying source, once."""
        source = self._source  # read once, because the writer may drop it meanwhile
        if self._live is None and source is not None:
            self._live = bytes_of(source() if callable(source) else source)
        return self._live

    def let_go(self) -> None:
        """Drop the live memory."""
        self._live = self._source = None

    def piece_at(self, at: int) -> Piece | None:
        """Return the piece that holds byte ``at``, or None."""
        return next((piece for piece in self.pieces if piece.start <= at < piece.stop), None)
