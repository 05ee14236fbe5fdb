"""Decides which part of a capture a rank stores, so that the ranks together store replicated data once.

Guarantees: the parts of all ranks hold every byte of a replicated leaf exactly once. Each part is consecutive memory,
so that it is a view and not a copy. Every rank computes its part from the specs of the leaves, which must be the same
in all ranks. Shares are as even as leaves allow: a leaf is cut along its first axis longer than 1, so a state of few
leaves with few, huge rows has uneven shares. Frozen leaves are shared out separately, because most saves write only the
others. Training thread only.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ckptkit.core.placement import Box
from ckptkit.core.tensors import DTYPES, Array, Leaf, LeafSpec

_CUTS_KEPT = 4  # with accumulators and without, and both again after the leaves changed
_NOT_CUT = 32  # a leaf below this fraction of a share goes to one rank, which hardly enlarges its share


@dataclass(frozen=True)
class _Piece:
    """Says what to store of a leaf.

    Attributes:
        place: Index of the leaf in the capture.
        spec: The leaf's own spec if all of it is stored.
        first: Index, in C order, of the leaf's element with which the piece begins.
    """

    place: int
    spec: LeafSpec
    first: int = 0


@dataclass(frozen=True)
class _Cut:
    specs: tuple[LeafSpec, ...]
    rank: int
    ranks: int
    pieces: tuple[_Piece, ...]


class Partition:
    """Remembers how captures were shared out, so that specs stay the same objects from save to save."""

    def __init__(self) -> None:
        self._cuts: list[_Cut] = []

    def share(self, leaves: Sequence[Leaf], rank: int, ranks: int) -> tuple[Leaf, ...]:
        """Return what ``rank`` of ``ranks`` stores of ``leaves``; all leaves, unchanged, if it is the only rank."""
        if ranks == 1:
            return tuple(leaves)
        specs = tuple(leaf.spec for leaf in leaves)
        wanted = (specs, rank, ranks)
        found = next((one for one in self._cuts if (one.specs, one.rank, one.ranks) == wanted), None)
        if found is None:
            found = _Cut(specs, rank, ranks, tuple(_pieces(specs, rank, ranks)))
            self._cuts = [found, *self._cuts[: _CUTS_KEPT - 1]]
        return tuple(_leaf(leaves[piece.place], piece) for piece in found.pieces)


def _pieces(specs: Sequence[LeafSpec], rank: int, ranks: int) -> Iterator[_Piece]:
    """Yield the pieces in the order of ``specs``."""
    shares = {frozen: _Share(specs, frozen, rank, ranks) for frozen in (True, False)}
    for place, spec in enumerate(specs):
        if spec.placement == "replicated":
            piece = shares[spec.lifetime == "frozen"].piece(place)
            if piece is not None:
                yield piece
        elif not isinstance(spec.placement, Box) or spec.placement.replica == 0:
            yield _Piece(place, spec)


class _Share:
    """Computes a rank's share of the replicated leaves that are frozen, or that are not, laid end to end."""

    def __init__(self, specs: Sequence[LeafSpec], frozen: bool, rank: int, ranks: int) -> None:
        self._specs = specs
        self._rank = rank
        chosen = [
            (place, spec)
            for place, spec in enumerate(specs)
            if spec.placement == "replicated" and (spec.lifetime == "frozen") == frozen and spec.size_bytes
        ]
        self._places = [place for place, _ in chosen]
        self._starts = [0, *itertools.accumulate(spec.size_bytes for _, spec in chosen)]
        self._start_of = dict(zip(self._places, self._starts, strict=False))
        total = self._starts[-1]
        self._small_bytes = total // ranks // _NOT_CUT
        self._start, self._stop = (self._cut_near(total * one // ranks) for one in (rank, rank + 1))

    def piece(self, place: int) -> _Piece | None:
        """Return the part of the leaf at ``place`` that is in the share, or None."""
        spec = self._specs[place]
        if not spec.size_bytes:
            return _Piece(place, spec) if self._rank == 0 else None
        at = self._start_of[place]
        start = max(self._start - at, 0)
        stop = min(self._stop - at, spec.size_bytes)
        if start >= stop:
            return None
        if stop - start == spec.size_bytes:
            return _Piece(place, spec)
        axis = _cut_axis(spec)
        row_bytes = _row_bytes(spec)
        first, last = start // row_bytes, stop // row_bytes
        shape = (*spec.shape[:axis], last - first, *spec.shape[axis + 1 :])
        offsets = tuple(first if one == axis else 0 for one in range(len(spec.shape)))
        part = replace(spec, shape=shape, part=Box(spec.shape, offsets))
        return _Piece(place, part, start // DTYPES[spec.dtype].itemsize)

    def _cut_near(self, at: int) -> int:
        """Return the offset nearest to byte ``at`` where a share may end; never decreases with ``at``."""
        number = bisect.bisect_right(self._starts, at) - 1
        if number == len(self._places):
            return at
        spec = self._specs[self._places[number]]
        step = spec.size_bytes if spec.size_bytes <= self._small_bytes else _row_bytes(spec)
        start = self._starts[number]
        return start + (2 * (at - start) + step) // (2 * step) * step


def _cut_axis(spec: LeafSpec) -> int:
    return next(axis for axis, size in enumerate(spec.shape) if size > 1)


def _row_bytes(spec: LeafSpec) -> int:
    """Return the number of bytes between two offsets where the leaf may be cut."""
    return spec.size_bytes // next((size for size in spec.shape if size > 1), 1)


def _leaf(leaf: Leaf, piece: _Piece) -> Leaf:
    if piece.spec.part is None:
        return leaf
    if callable(leaf.source):
        return Leaf(piece.spec, functools.partial(_cut_when_asked, leaf.source, piece))
    return Leaf(piece.spec, _view(leaf.source, piece))


def _cut_when_asked(source: Callable[[], Array], piece: _Piece) -> Array:
    return _view(source(), piece)


def _view(array: Array, piece: _Piece) -> Array:
    count = piece.spec.size_bytes // DTYPES[piece.spec.dtype].itemsize
    return array.reshape(-1)[piece.first : piece.first + count].reshape(piece.spec.shape)
