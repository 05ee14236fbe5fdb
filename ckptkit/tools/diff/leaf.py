"""Compares one leaf of two checkpoints, piece by piece.

Guarantees: each element is compared exactly once, however each side has cut the leaf; every file that is read is
verified, some only when `ckptkit.checkpoint.leaves.ProvenFiles.end` is called. One thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from ckptkit.checkpoint.leaves import ProvenFiles, ShardBytes, StoredLeaf
from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.checkpoint.parts import read_sharded
from ckptkit.checkpoint.read import check_sizes
from ckptkit.core.contents import WantedPart
from ckptkit.core.placement import Box
from ckptkit.core.tensors import DTYPES, Array, bytes_of
from ckptkit.storage import Storage
from ckptkit.tools.diff.statistics import Divergence, Tally

WINDOW_BYTES = 8 << 20
"""Of a leaf, how much of each side is compared at a time."""


class Side:
    """Reads one of the two checkpoints.

    Args:
        storage: The run root.
        opened: Its documents.
        report: Called with the number of bytes just read.

    Attributes:
        files: Reads leaves that no user has cut; the caller must end it after the last read.

    Raises:
        CheckpointNotFoundError: If it was removed meanwhile.
        CorruptCheckpointError: If a file is missing or of another size.
        StorageError: If the storage failed.
    """

    def __init__(self, storage: Storage, opened: OpenedCheckpoint, report: Callable[[int], None]) -> None:
        check_sizes(storage, opened)  # before memory is allocated
        self.opened = opened
        self.files = ProvenFiles(storage, opened.name, report)
        self._cut_files = ShardBytes(storage, opened.name, report)

    def run(self, leaf: StoredLeaf, start_bytes: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes of a leaf that is not cut by a user, from ``start_bytes`` on."""
        end_bytes = start_bytes + len(into)
        for piece in leaf.pieces:
            first = max(start_bytes, piece.start_bytes)
            last = min(end_bytes, piece.start_bytes + piece.entry.size_bytes)
            if first < last:
                at = piece.entry.offset_bytes + first - piece.start_bytes
                self.files.read(piece.shard, at, into[first - start_bytes : last - start_bytes])

    def box(self, leaf: StoredLeaf, box: Box, shape: tuple[int, ...]) -> Array:
        """Return a part of a leaf that is cut by a user; its blocks are verified."""
        part = np.empty(shape, DTYPES[leaf.info.dtype])
        wanted = WantedPart("leaf", box, shape, bytes_of(part).data)
        read_sharded(self._cut_files, {"leaf": leaf}, [wanted], None)
        return part


class LeafPair:
    """Compares a leaf of equal dtype and shape on both sides.

    Args:
        a: The first side.
        b: The second side.
        one: The leaf on the first side.
        other: The leaf on the second side.
    """

    def __init__(self, a: Side, b: Side, one: StoredLeaf, other: StoredLeaf) -> None:
        self._sides = ((a, one), (b, other))
        self._info = one.info
        self._dtype = DTYPES[one.info.dtype]

    def divergence(self) -> Divergence:
        """Return by how much they differ; raises as `ckptkit.tools.diff.checkpoints.compare`."""
        tally = Tally(self._info.dtype)
        if any(leaf.info.placement == "sharded" for _, leaf in self._sides):
            self._compare_boxes(tally)
        else:
            self._compare_runs(tally)
        return tally.result()

    def _compare_runs(self, tally: Tally) -> None:
        item = self._dtype.itemsize
        elements = math.prod(self._info.shape)
        step = min(elements, max(1, WINDOW_BYTES // item))
        memory = [np.empty(step, self._dtype) for _ in self._sides]
        for first in range(0, elements, step) if step else ():
            count = min(step, elements - first)
            a, b = (one[:count] for one in memory)
            for (side, leaf), part in zip(self._sides, (a, b), strict=True):
                side.run(leaf, first * item, bytes_of(part).data)
            tally.add(a, b, functools.partial(self._place, first))

    def _compare_boxes(self, tally: Tally) -> None:
        wholes = [self._whole(side, leaf) for side, leaf in self._sides]
        for box, shape in self._boxes():
            corner = tuple(slice(at, at + size) for at, size in zip(box.offsets, shape, strict=True))
            a, b = (
                np.ascontiguousarray(whole[corner]) if whole is not None else side.box(leaf, box, shape)
                for whole, (side, leaf) in zip(wholes, self._sides, strict=True)
            )

            def place(at: int, box: Box = box, shape: tuple[int, ...] = shape) -> tuple[int, ...]:
                inside = np.unravel_index(at, shape)
                return tuple(int(one) + offset for one, offset in zip(inside, box.offsets, strict=True))

            tally.add(a.reshape(-1), b.reshape(-1), place)

    def _boxes(self) -> Iterator[tuple[Box, tuple[int, ...]]]:
        """Yield the parts of the side that is cut; if both are, of the one with more parts."""
        cut = [leaf for _, leaf in self._sides if leaf.info.placement == "sharded"]
        for piece in max(cut, key=lambda leaf: len(leaf.pieces)).pieces:
            part = piece.entry.part
            if part is not None and piece.entry.size_bytes:
                yield Box(tuple(part.global_shape), tuple(part.offsets)), tuple(piece.entry.shape)

    def _whole(self, side: Side, leaf: StoredLeaf) -> Array | None:
        """Return the whole leaf if this side has not cut it."""
        if leaf.info.placement == "sharded":
            return None
        whole = leaf.info.empty()
        side.run(leaf, 0, bytes_of(whole).data)
        return whole

    def _place(self, first: int, at: int) -> tuple[int, ...]:
        return tuple(int(one) for one in np.unravel_index(first + at, self._info.shape))
