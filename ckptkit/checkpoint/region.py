"""A box inside an array whose bytes come in order, in pieces that begin and end anywhere.

Guarantees: exact for any number of axes, without ever listing the rows of the box. Pure values, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Region:
    """What is taken of an array of bytes.

    Attributes:
        shape: Of the array, in bytes along its last axis; at least one axis.
        take: From where to where along each axis; nowhere empty.
    """

    shape: tuple[int, ...]
    take: tuple[slice, ...]

    @classmethod
    def of_elements(cls, shape: Sequence[int], starts: Sequence[int], sizes: Sequence[int], item: int) -> Region:
        """The box of ``sizes`` elements at ``starts`` in an array of ``shape``, each of ``item`` bytes."""
        take = [slice(at, at + size) for at, size in zip(starts, sizes, strict=True)]
        return cls((*shape, item), (*take, slice(0, item)))

    def next_taken(self, at: int) -> int | None:
        """The first byte of the array that is taken, from byte ``at`` on."""
        index = []
        for size in reversed(self.shape):
            at, along = divmod(at, size)
            index.append(along)
        if at:
            return None
        index.reverse()
        for axis, (along, take) in enumerate(zip(index, self.take, strict=True)):
            if along < take.start:
                return self._place([*index[:axis], *(one.start for one in self.take[axis:])])
            if along >= take.stop:
                return self._after(index[:axis])
        return self._place(index)

    def copy(self, data: Bytes, at: int, into: Bytes) -> None:
        """Copy what is taken of ``data``, which is the array from byte ``at`` on; ``into`` has the box's shape."""
        _copy(data, at, self.shape, self.take, into)

    def _after(self, index: list[int]) -> int | None:
        """The first byte that is taken behind all those that begin with ``index``, whose places are all taken."""
        for axis in reversed(range(len(index))):
            if index[axis] + 1 < self.take[axis].stop:
                rest = [one.start for one in self.take[axis + 1 :]]
                return self._place([*index[:axis], index[axis] + 1, *rest])
        return None

    def _place(self, index: Sequence[int]) -> int:
        at = 0
        for size, along in zip(self.shape, index, strict=True):
            at = at * size + along
        return at


def _copy(data: Bytes, at: int, shape: tuple[int, ...], take: tuple[slice, ...], into: Bytes) -> None:
    row_bytes = math.prod(shape[1:])
    end = at + len(data)
    # Rows that are there from end to end are copied together; the first and the last may be there in part.
    whole = slice(max(-(-at // row_bytes), take[0].start), min(end // row_bytes, take[0].stop))
    if whole.start < whole.stop:
        rows = data[whole.start * row_bytes - at : whole.stop * row_bytes - at]
        found = rows.reshape(whole.stop - whole.start, *shape[1:])[(slice(None), *take[1:])]
        into[whole.start - take[0].start : whole.stop - take[0].start] = found
    for row in sorted({at // row_bytes, (end - 1) // row_bytes}):
        start, stop = max(at, row * row_bytes), min(end, (row + 1) * row_bytes)
        if take[0].start <= row < take[0].stop and 0 < stop - start < row_bytes:
            part = data[start - at : stop - at]
            _copy(part, start - row * row_bytes, shape[1:], take[1:], into[row - take[0].start])
