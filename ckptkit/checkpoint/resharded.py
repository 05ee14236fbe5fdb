"""Converts a checkpoint of N ranks to M ranks: folds its progress, and gives each new rank its share of the sums.

Guarantees: the accumulators of all new ranks together have the sum of those of the old ranks, up to floating-point
order and rounding (float32; bit for bit if every share is a power of two and no sum rounds), the same bits each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ckptkit.checkpoint.parts import WholeLeaves
from ckptkit.core.accumulation import fold_progress, shares
from ckptkit.core.contents import Contents, Sink, WantedPart
from ckptkit.core.tensors import Array, bytes_of
from ckptkit.errors import CorruptCheckpointError, StateMismatchError


def folded(contents: Contents, onto: int, rank: int, steps: Iterable[int] = ()) -> Contents:
    """Convert ``contents`` for ``rank`` in a world of ``onto`` ranks."""
    progress = fold_progress(contents.progress, contents.world_size, onto, steps)
    names = frozenset(name for name, info in contents.entries.items() if info.role == "accumulators")
    if not names or progress.at_boundary:  # at a boundary only a foreign cell has accumulators, and it resets them
        return replace(contents, progress=progress)
    others = sorted(
        name
        for name in names
        if contents.entries[name].dtype != "F32" or contents.entries[name].placement != "per_rank"
    )
    if others:
        raise StateMismatchError(
            f"the accumulators {others[:10]} of {contents.checkpoint} cannot be redistributed: they are not float32, "
            f"or not per-rank sums (Ranks(placement=...)). Continue with {contents.world_size} ranks, or from a "
            "checkpoint at a boundary"
        )
    parts = [
        (contents if old == contents.rank else contents.of_rank(old), share)
        for old, share in shares(contents.world_size, onto, rank)
    ]
    for part, _ in parts:
        accumulators = {name: info for name, info in part.entries.items() if info.role == "accumulators"}
        if accumulators != {name: contents.entries[name] for name in names} or part.progress != contents.progress:
            raise CorruptCheckpointError(
                f"{contents.checkpoint}: rank {part.rank} and rank {contents.rank} hold different accumulators"
            )
    return replace(contents, progress=progress, source=FoldedSource(contents, parts, names))


class FoldedSource:
    """Reads some tensors as sums over several ranks; implements `ckptkit.core.contents.Source`."""

    def __init__(self, home: Contents, parts: Sequence[tuple[Contents, Fraction]], names: frozenset[str]) -> None:
        self._home = home
        self._names = names
        # Multiply by integers and divide once: accumulators that count in integers, such as the divisor, stay exact.
        self._fraction = math.lcm(*(share.denominator for _, share in parts))
        self._parts = [(part, int(share * self._fraction)) for part, share in parts]

    def read_into(self, sink: Sink) -> None:
        summed = self._names & set(sink.names)
        self._home.read_into(_Others(sink, summed))
        sums: dict[str, Array] = {}
        for part, times in self._parts:
            last = part is self._parts[-1][0]

            def add(name: str, summand: Array, times: int = times, last: bool = last) -> None:
                sums[name] = _added(sums.get(name), summand, times)
                if last:
                    total = np.ascontiguousarray(_divided(sums.pop(name), self._fraction))
                    sink.buffer(name)[:] = bytes_of(total).data
                    sink.done(name)

            part.read_into(WholeLeaves(self._home.entries, summed, add))

    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None = None) -> None:
        self._home.read_parts(wanted, done)

    def peek(self, name: str) -> Array:
        if name not in self._names:
            return self._home.peek(name)
        total: Array | None = None
        for part, times in self._parts:
            total = _added(total, np.array(part.peek(name)), times)
        assert total is not None  # noqa: S101 - every new rank has at least one part
        return _divided(total, self._fraction)

    def prove(self, names: Collection[str]) -> None:
        summed = self._names & set(names)
        self._home.prove(set(names) - summed)
        if summed:
            for part, _ in self._parts:
                part.prove(summed)


class _Others:
    """Passes on all tensors of a sink but the summed ones."""

    def __init__(self, sink: Sink, summed: Collection[str]) -> None:
        self.names: Collection[str] = frozenset(sink.names) - frozenset(summed)
        self.ready = sink.ready
        self.buffer = sink.buffer
        self.done = sink.done


def _added(total: Array | None, summand: Array, times: int) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # sums that overflowed in training stay as they are
        if times != 1:
            summand = np.multiply(summand, np.float32(times))
        return np.asarray(summand if total is None else np.add(total, summand))


def _divided(total: Array, by: int) -> Array:
    return total if by == 1 else np.asarray(np.divide(total, np.float32(by)))
