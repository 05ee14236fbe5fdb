"""Reads parts of leaves that were stored in other parts: only the overlaps, block by block.

Before a byte is read, the stored pieces are known to hold every wanted element exactly once. Each block is verified
before its bytes are delivered, and read once per call; those without wanted bytes are not read. Never run on Ascend
with MindSpore's own layouts; its tests cut hand-made boxes.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.checkpoint.shard_bytes import ShardBytes, StoredLeaf, StoredPiece
from ckptkit.core.contents import TensorInfo, WantedPart
from ckptkit.core.placement import any_overlap
from ckptkit.core.tensors import DTYPES, Array, bytes_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import Blocks, ShardEntry, digest_of

_Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Overlap(NamedTuple):
    """Describes what a stored piece has of a wanted part: a box of the piece, and its place in the part's memory."""

    piece: StoredPiece
    shape: tuple[int, ...]  # of the piece, with a last axis for the bytes of an element
    take: tuple[slice, ...]
    into: Bytes
    number: int  # of the wanted part


def read_sharded(
    files: ShardBytes,
    leaves: Mapping[str, StoredLeaf],
    wanted: Sequence[WantedPart],
    done: Callable[[str], None] | None,
) -> None:
    """Read parts as `ckptkit.core.contents.Contents.read_parts` does, for leaves whose placement is ``sharded``."""
    by_file: dict[str, list[Overlap]] = {}
    left: collections.Counter[int] = collections.Counter()
    for number, part in enumerate(wanted):
        for overlap in _overlaps(leaves[part.name], part, number):
            by_file.setdefault(overlap.piece.shard.key, []).append(overlap)
            left[number] += 1
        if not left[number] and done is not None:
            done(part.name)  # the part is empty
    for overlaps in by_file.values():
        _read(files, overlaps[0].piece.shard, overlaps)
        for overlap in overlaps:
            left[overlap.number] -= 1
            if not left[overlap.number] and done is not None:
                done(wanted[overlap.number].name)


def _overlaps(leaf: StoredLeaf, part: WantedPart, number: int) -> list[Overlap]:
    if not math.prod(part.shape):
        return []
    item = DTYPES[leaf.info.dtype].itemsize
    into = np.frombuffer(part.memory, np.uint8).reshape(*part.shape, item)
    begin, end = _corners([piece.entry.part.offsets for piece in leaf.pieces if piece.entry.part], leaf, part)
    overlapping = [int(index) for index in np.flatnonzero((begin < end).all(axis=1))]
    _refuse_gaps(leaf, part, begin[overlapping], end[overlapping])
    overlaps = []
    for index in overlapping:
        piece = leaf.pieces[index]
        assert piece.entry.part is not None  # noqa: S101 - sharded entries are validated to have one
        take = (*_box(begin[index], end[index], piece.entry.part.offsets), slice(0, item))
        there = into[_box(begin[index], end[index], part.box.offsets)]
        overlaps.append(Overlap(piece, (*piece.entry.shape, item), take, there, number))
    return overlaps


def _box(begin: _Numbers, end: _Numbers, offsets: Sequence[int]) -> tuple[slice, ...]:
    """Return the elements from ``begin`` to ``end`` of a whole as those of its part at ``offsets``."""
    return tuple(
        slice(first - at, last - at) for first, last, at in zip(begin.tolist(), end.tolist(), offsets, strict=True)
    )


def _corners(offsets: list[list[int]], leaf: StoredLeaf, part: WantedPart) -> tuple[_Numbers, _Numbers]:
    """Compute where the overlap of each piece with ``part`` begins and ends along each axis of the whole leaf."""
    axes = len(part.shape)
    first = np.array(offsets, np.int64).reshape(len(offsets), axes)
    shapes = np.array([piece.entry.shape for piece in leaf.pieces], np.int64).reshape(len(offsets), axes)
    low = np.array(part.box.offsets, np.int64)
    high = low + np.array(part.shape, np.int64)
    return np.maximum(first, low), np.minimum(first + shapes, high)


def _refuse_gaps(leaf: StoredLeaf, part: WantedPart, begin: _Numbers, end: _Numbers) -> None:
    if any_overlap(begin, end):
        problem = "stored twice"
    elif int((end - begin).prod(axis=1).sum()) != math.prod(part.shape):
        problem = "missing"
    else:
        return
    raise CorruptCheckpointError(
        f"{leaf.pieces[0].shard.key} and others hold parts of {part.name[:80]!r}; some elements of the part "
        f"{list(part.shape)} at {list(part.box.offsets)} are {problem}"
    )


def _read(files: ShardBytes, shard: ShardEntry, overlaps: Sequence[Overlap]) -> None:
    blocks = shard.blocks
    assert blocks is not None  # noqa: S101 - files with sharded leaves are validated to have them
    most = max(1, files.window_bytes // blocks.size_bytes)
    scratch = np.empty(min(most * blocks.size_bytes, shard.size_bytes), np.uint8)
    for first, count in _runs(sorted(_blocks_of(overlaps, blocks.size_bytes)), most):
        at = first * blocks.size_bytes
        data = scratch[: min(count * blocks.size_bytes, shard.size_bytes - at)]
        reread_if_corrupt(partial(_verify, files, shard, blocks, first, data))
        for overlap in overlaps:
            entry = overlap.piece.entry
            start, stop = max(at, entry.offset_bytes), min(at + len(data), entry.offset_bytes + entry.size_bytes)
            if start < stop:
                part = data[start - at : stop - at]
                copy_taken(part, start - entry.offset_bytes, overlap.shape, overlap.take, overlap.into)


def _blocks_of(overlaps: Sequence[Overlap], block_bytes: int) -> set[int]:
    blocks: set[int] = set()
    for overlap in overlaps:
        offset = overlap.piece.entry.offset_bytes
        for start, stop in spans(overlap.shape, overlap.take, block_bytes):
            blocks.update(range((offset + start) // block_bytes, -(-(offset + stop) // block_bytes)))
    return blocks


def spans(shape: Sequence[int], take: Sequence[slice], block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield where in an array's bytes the taken ones lie; what is not taken within a span is less than a block."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    far = sum(stride > block_bytes for stride in strides)  # axes along which whole blocks may lie between two steps
    first = sum(along.start * stride for along, stride in zip(take[far:], strides[far:], strict=True))
    last = sum((along.stop - 1) * stride for along, stride in zip(take[far:], strides[far:], strict=True))
    for index in itertools.product(*(range(along.start, along.stop) for along in take[:far])):
        at = sum(along * stride for along, stride in zip(index, strides, strict=False))
        yield at + first, at + last + 1


def _runs(numbers: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Group consecutive numbers into runs of at most ``most``; yield the first number and the count of each run."""
    first = count = 0
    for number in numbers:
        if count and (number != first + count or count == most):
            yield first, count
            count = 0
        if not count:
            first = number
        count += 1
    if count:
        yield first, count


def _verify(files: ShardBytes, shard: ShardEntry, blocks: Blocks, first: int, data: Bytes) -> None:
    files.fill(shard, [data.data], first * blocks.size_bytes)
    for number in range(first, first - (-len(data) // blocks.size_bytes)):
        at = (number - first) * blocks.size_bytes
        digest = digest_of(data[at : at + blocks.size_bytes].data)
        if digest != blocks.digests[number]:
            raise CorruptCheckpointError(
                f"block {number} of {shard.key} has the digest {digest}, expected {blocks.digests[number]}"
            )


def copy_taken(data: Bytes, at: int, shape: tuple[int, ...], take: tuple[slice, ...], into: Bytes) -> None:
    """Copy the taken bytes of ``data``, an array's bytes from ``at`` on; ``into`` has the shape of what is taken."""
    row_bytes = math.prod(shape[1:])
    end = at + len(data)
    # Copy complete rows together; the first and the last row may be incomplete.
    whole = slice(max(-(-at // row_bytes), take[0].start), min(end // row_bytes, take[0].stop))
    if whole.start < whole.stop:
        rows = data[whole.start * row_bytes - at : whole.stop * row_bytes - at]
        wanted = (slice(None), *take[1:])
        selection = rows.reshape(whole.stop - whole.start, *shape[1:])[wanted]
        into[whole.start - take[0].start : whole.stop - take[0].start] = selection
    for row in sorted({at // row_bytes, (end - 1) // row_bytes}):
        start, stop = max(at, row * row_bytes), min(end, (row + 1) * row_bytes)
        if take[0].start <= row < take[0].stop and 0 < stop - start < row_bytes:
            part = data[start - at : stop - at]
            copy_taken(part, start - row * row_bytes, shape[1:], take[1:], into[row - take[0].start])


class WholeLeaves:
    """Gives each leaf memory of its own, and passes it on; implements `ckptkit.core.contents.Sink`."""

    def __init__(
        self, infos: Mapping[str, TensorInfo], names: Collection[str], pass_on: Callable[[str, Array], None]
    ) -> None:
        self.names = names
        self._infos = infos
        self._pass_on = pass_on
        self._arrays: dict[str, Array] = {}

    def ready(self, name: str) -> None: ...

    def buffer(self, name: str) -> memoryview:
        array = self._arrays[name] = self._infos[name].empty()
        return bytes_of(array).data

    def done(self, name: str) -> None:
        self._pass_on(name, self._arrays.pop(name))


def cut_out(whole: Array, part: WantedPart) -> None:
    """Copy ``part`` out of the whole leaf."""
    corner = zip(part.box.offsets, part.shape, strict=True)
    cut = whole[tuple(slice(at, at + size) for at, size in corner)]
    part.memory[:] = bytes_of(np.ascontiguousarray(cut)).data
