"""Represents tensors as bytes: the dtype table, the leaves of a checkpoint, and digests of their bits.

Bits go in and out unchanged, including NaN payloads, signed zeros and bfloat16. Any thread.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from ckptkit.core.placement import Box, Placement
from ckptkit.core.worker import each_of

Role = Literal["weights", "optimizer", "accumulators", "state"]
Lifetime = Literal["frozen", "cycle", "micro"]  # bytes stay: for the attempt, until the next update, or micro-step
Array = npt.NDArray[np.generic]

ROLES: tuple[Role, ...] = ("weights", "optimizer", "accumulators", "state")

# Name in the safetensors header -> NumPy dtype that carries the bits. NumPy has no dtype for BF16.
DTYPES: dict[str, np.dtype[np.generic]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "C64": np.dtype("<c8"),
}

_BLOCKS, _BLOCK_BYTES = 16, 1 << 12
_LANES = 4  # more would compete for the memory's bandwidth
_LANES_FROM_BYTES = 256 << 20  # less is not worth threads

_NAME_OF = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}


def size_bytes_of(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * DTYPES[dtype].itemsize


@dataclass(frozen=True)
class LeafSpec:
    """Describes a leaf apart from its bits; the same object from save to save, so that plans can be reused."""

    name: str
    role: Role
    lifetime: Lifetime
    dtype: str  # name in `DTYPES`
    shape: tuple[int, ...]
    placement: Placement = "per_rank"  # always correct
    part: Box | None = None  # piece of a replicated leaf, if ranks share the work of storing it

    @cached_property
    def size_bytes(self) -> int:
        return size_bytes_of(self.dtype, self.shape)


class Leaf(NamedTuple):
    """Holds one tensor of a checkpoint: its bits, C-contiguous, in the NumPy dtype of `DTYPES`.

    Where every access copies a tensor (from an accelerator), ``source`` is a function that returns them, for one thread
    at a time.
    """

    spec: LeafSpec
    source: Array | Callable[[], Array]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def role(self) -> Role:
        return self.spec.role

    @property
    def lifetime(self) -> Lifetime:
        return self.spec.lifetime

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def size_bytes(self) -> int:
        return self.spec.size_bytes

    @property
    def array(self) -> Array:
        """The bits; may be live memory."""
        return self.source() if callable(self.source) else self.source


def leaf_of(
    name: str, array: Array, *, role: Role, lifetime: Lifetime = "micro", placement: Placement = "per_rank"
) -> Leaf:
    """Make a leaf from a NumPy array; a TypeError names a leaf whose dtype safetensors does not have."""
    spec = LeafSpec(name, role, lifetime, dtype_of(name, array), tuple(array.shape), placement)
    return Leaf(spec, bits_of(array))


def dtype_of(name: str, array: Array) -> str:
    """Return the name in `DTYPES`; bfloat16 is recognised by the name of its dtype."""
    if _is_bfloat16(array):
        return "BF16"
    known = _NAME_OF.get(array.dtype.newbyteorder("<"))
    if known is None or array.dtype.byteorder == ">":
        raise TypeError(f"{name}: dtype {array.dtype} cannot be stored in a safetensors file")
    return known


def bits_of(array: Array) -> Array:
    """Return ``array`` in the NumPy dtype that carries its bits, C-contiguous; the same memory if possible."""
    bits = array.view(np.uint16) if _is_bfloat16(array) else array
    return bits if bits.flags.c_contiguous else np.ascontiguousarray(bits)


def values_of(dtype: str, bits: Array) -> Array:
    """Return ``bits`` as numbers that NumPy can compute with: bfloat16 becomes float32 of the same value."""
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else bits


def bytes_of(array: Array) -> npt.NDArray[np.uint8]:
    """Return the memory of a C-contiguous ``array`` as flat bytes, without a copy."""
    return array.reshape(-1).view(np.uint8)


def _is_bfloat16(array: Array) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.name == "bfloat16"  # itemsize first: getting the name is slow


def digest_of_bits(array: Array) -> str:
    return xxhash.xxh3_128_hexdigest(bytes_of(array).data)


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges of bytes that `sample_of` reads: all up to 64 KiB, of more 16 blocks, the ends among them."""
    if size_bytes <= _BLOCKS * _BLOCK_BYTES:
        return [(0, size_bytes)]
    last = size_bytes - _BLOCK_BYTES
    starts = [last * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
    return [(start, start + _BLOCK_BYTES) for start in starts]


def sample_of(array: Array) -> str:
    """Return the xxh3_128 of a sample of the bits of a C-contiguous ``array``, whatever its size in the same time."""
    data = bytes_of(array).data
    return xxhash.xxh3_128_hexdigest(b"".join([data[start:stop] for start, stop in sampled(array.nbytes)]))


def digests_of(leaves: Sequence[Leaf]) -> dict[str, str]:
    in_lanes = sum(leaf.size_bytes for leaf in leaves) >= _LANES_FROM_BYTES
    in_lanes = in_lanes and not any(callable(leaf.source) for leaf in leaves)  # these are for one thread
    threads = min(_LANES, os.cpu_count() or 1) if in_lanes else 1
    digests = each_of(leaves, lambda leaf: digest_of_bits(leaf.array), threads=threads, few=1)
    return {leaf.name: digest for leaf, digest in zip(leaves, digests, strict=True)}
