"""Where the bits of a leaf lie in a job of many ranks: everywhere the same, in each rank its own, or cut.

Guarantees: a placement is what somebody said, never inferred from a shape. Pure values, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Box:
    """The part of a whole tensor that a rank holds; the part's own shape is that of its leaf.

    Attributes:
        global_shape: Of the whole.
        offsets: Of the part's first element, in elements, one per axis.

    Raises:
        ValueError: If the two have not the same number of axes, or an offset lies outside.
    """

    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.global_shape) != len(self.offsets):
            raise ValueError(f"offsets {self.offsets} and global_shape {self.global_shape} differ in their axes")
        if any(not 0 <= at <= whole for at, whole in zip(self.offsets, self.global_shape, strict=True)):
            raise ValueError(f"offsets {self.offsets} lie outside of {self.global_shape}")


# "replicated": the same bits in every rank, stored once. "per_rank": each rank has its own, and all are stored.
Placement: TypeAlias = Literal["replicated", "per_rank"] | Box
