"""Describes how a leaf lies in a job of many ranks: the same in all, separate in each, or cut.

A placement is always declared, never inferred from a shape. Pure values, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Box:
    """Locates the part of a whole tensor that a rank holds; the leaf's shape is the part's shape.

    Attributes:
        global_shape: Shape of the whole.
        offsets: Position of the part's first element, in elements, one per axis.
        replica: Number, from 0, of this rank among the ranks that hold this same part; only replica 0 stores it.

    Raises:
        ValueError: If the two differ in their number of axes, or an offset lies outside.
    """

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    replica: int = 0

    def __post_init__(self) -> None:
        if len(self.global_shape) != len(self.offsets):
            raise ValueError(
                f"offsets {self.offsets} and global_shape {self.global_shape} have different numbers of axes"
            )
        if any(not 0 <= at <= whole for at, whole in zip(self.offsets, self.global_shape, strict=True)):
            raise ValueError(f"offsets {self.offsets} are outside {self.global_shape}")


# "replicated": the same bits in every rank, stored once. "per_rank": each rank has its own, and all are stored.
Placement: TypeAlias = Literal["replicated", "per_rank"] | Box
PlacementByName: TypeAlias = Callable[[str], Placement | None]

Tag = Literal["replicated", "per_rank", "sharded"]
"""What kind of placement it is; files hold leaves of one kind only."""


def tag_of(placement: Placement) -> Tag:
    return "sharded" if isinstance(placement, Box) else placement


def lies_inside(global_shape: Sequence[int], offsets: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a part of ``shape`` at ``offsets`` has the axes of the whole and stays inside it."""
    if not len(global_shape) == len(offsets) == len(shape):
        return False
    parts = zip(global_shape, offsets, shape, strict=True)
    return all(at >= 0 and at + size <= whole for whole, at, size in parts)


def first_element(global_shape: Sequence[int], offsets: Sequence[int]) -> int:
    """Return how many elements of the whole, in C order, come before the one at ``offsets``."""
    at = 0
    for whole, offset in zip(global_shape, offsets, strict=True):
        at = at * whole + offset
    return at


def is_one_run(global_shape: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether a part of ``shape`` is consecutive memory of the whole, in C order."""
    if not math.prod(shape):
        return True
    long = next((axis for axis, size in enumerate(shape) if size > 1), len(shape))
    return all(whole == size for whole, size in zip(global_shape[long + 1 :], shape[long + 1 :], strict=True))


def fault_of_cut(global_shape: Sequence[int], parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str:
    """Return why ``parts`` (offsets and shapes) do not hold each element exactly once; empty if they do."""
    if any(not lies_inside(global_shape, offsets, shape) for offsets, shape in parts):
        return "are not inside the tensor"
    begin = np.array([offsets for offsets, _ in parts], np.int64).reshape(len(parts), len(global_shape))
    end = begin + np.array([shape for _, shape in parts], np.int64).reshape(begin.shape)
    filled = (begin < end).all(axis=1)
    begin, end = begin[filled], end[filled]
    if any_overlap(begin, end):
        return "store something twice"
    stored = sum(math.prod(shape) for _, shape in parts)
    return "leave something out" if stored != math.prod(global_shape) else ""


def any_overlap(begin: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> bool:
    """Return whether two of the parts, which are not empty and lie from ``begin`` to ``end``, share an element."""
    return any(
        (np.maximum(begin[part], begin[part + 1 :]) < np.minimum(end[part], end[part + 1 :])).all(axis=1).any()
        for part in range(len(begin))
    )
