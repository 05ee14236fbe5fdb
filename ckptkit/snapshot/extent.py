"""A part of a file that is being written: bytes that were copied, or live memory that is still good.

Guarantees nothing by itself: its fields are guarded by the condition of the pool (`ckptkit.snapshot.window` says who
touches them when).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ckptkit.core.tensors import Array, bytes_of
from ckptkit.snapshot.buffers import Buffer, Bytes


class Piece(NamedTuple):
    """Bytes ``[start, stop)`` of an extent, copied into ``buffer`` at ``offset_bytes``."""

    start: int
    stop: int
    buffer: Buffer
    offset_bytes: int


class Extent:
    """Consecutive bytes of a shard.

    Attributes:
        size_bytes: Of all of it.
        held: Whether its memory stays as it is whatever training does: a header, or weights that are frozen.
        taken_bytes: How far the writer has come, which reads from the front.
        live_from: Below this, and from ``live_to`` on, its bytes are in ``pieces``.
        live_to: See ``live_from``.
        pieces: What was copied, in no particular order.
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
        """Whether nothing of it is live that the writer has yet to read."""
        return max(self.live_from, self.taken_bytes) >= self.live_to

    def live(self) -> Bytes | None:
        """The live memory; None once it was let go. A source that copies is asked once, by the training thread."""
        source = self._source  # once, because the writer may let go of it meanwhile
        if self._live is None and source is not None:
            self._live = bytes_of(source() if callable(source) else source)
        return self._live

    def let_go(self) -> None:
        """Hold no live memory any more."""
        self._live = self._source = None

    def piece_at(self, at: int) -> Piece | None:
        """The piece that holds byte ``at``."""
        return next((piece for piece in self.pieces if piece.start <= at < piece.stop), None)
