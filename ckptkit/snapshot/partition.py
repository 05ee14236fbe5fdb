"""Decides which part of a capture a rank stores, so that the ranks together store replicated data once.

The parts of all ranks hold every byte of a replicated leaf exactly once. Each part is consecutive memory, so that it is
a view and not a copy. Every rank computes its part from the specs of the leaves. A leaf is cut along its first axis
longer than 1. Frozen leaves are shared out separately, because most saves write only the others.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ckptkit.core.placement import Box
from ckptkit.core.tensors import DTYPES, Array, Leaf, LeafSpec

_NOT_CUT = 32  # a leaf below this fraction of a share goes to one rank, which hardly enlarges its share


@dataclass(frozen=True)
class Part:
    place: int  # index of the leaf in the capture
    spec: LeafSpec  # the leaf's own if all of it is stored
    first: int = 0  # index, in C order, of the leaf's element with which the part begins


def partition(specs: Sequence[LeafSpec], rank: int, ranks: int) -> list[Part]:
    """Return what ``rank`` of ``ranks`` stores of a capture whose leaves have ``specs``."""
    if ranks == 1:
        return [Part(place, spec) for place, spec in enumerate(specs)]
    shares = {frozen: _Share(specs, frozen, rank, ranks) for frozen in (True, False)}
    parts: list[Part] = []
    for place, spec in enumerate(specs):
        if spec.placement == "replicated":
            part = shares[spec.lifetime == "frozen"].part(place)
            parts += [part] if part is not None else []
        elif not isinstance(spec.placement, Box) or spec.placement.replica == 0:
            parts.append(Part(place, spec))
    return parts


def taken(leaves: Sequence[Leaf], parts: Sequence[Part]) -> tuple[Leaf, ...]:
    """Return ``parts`` of ``leaves``; a leaf of which all is stored is returned as it is."""
    return tuple(
        leaves[part.place] if part.spec.part is None else _cut(leaves[part.place].source, part) for part in parts
    )


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
        self._start, self._stop = (self._cut_near(total * boundary // ranks) for boundary in (rank, rank + 1))

    def part(self, place: int) -> Part | None:
        spec = self._specs[place]
        if not spec.size_bytes:
            return Part(place, spec) if self._rank == 0 else None
        at = self._start_of[place]
        start = max(self._start - at, 0)
        stop = min(self._stop - at, spec.size_bytes)
        if start >= stop:
            return None
        if stop - start == spec.size_bytes:
            return Part(place, spec)
        axis = next(axis for axis, size in enumerate(spec.shape) if size > 1)
        row_bytes = _row_bytes(spec)
        first, last = start // row_bytes, stop // row_bytes
        shape = (*spec.shape[:axis], last - first, *spec.shape[axis + 1 :])
        offsets = tuple(first if dimension == axis else 0 for dimension in range(len(spec.shape)))
        part = replace(spec, shape=shape, part=Box(spec.shape, offsets))
        return Part(place, part, start // DTYPES[spec.dtype].itemsize)

    def _cut_near(self, at: int) -> int:
        """Return the offset nearest to byte ``at`` where a share may end; never decreases with ``at``."""
        number = bisect.bisect_right(self._starts, at) - 1
        if number == len(self._places):
            return at
        spec = self._specs[self._places[number]]
        step = spec.size_bytes if spec.size_bytes <= self._small_bytes else _row_bytes(spec)
        start = self._starts[number]
        return start + (2 * (at - start) + step) // (2 * step) * step


def _row_bytes(spec: LeafSpec) -> int:
    return spec.size_bytes // next((size for size in spec.shape if size > 1), 1)


def _cut(source: Array | Callable[[], Array], part: Part) -> Leaf:
    return Leaf(part.spec, (lambda: _view(source(), part)) if callable(source) else _view(source, part))


def _view(array: Array, part: Part) -> Array:
    count = part.spec.size_bytes // DTYPES[part.spec.dtype].itemsize
    return array.reshape(-1)[part.first : part.first + count].reshape(part.spec.shape)
