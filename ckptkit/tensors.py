"""Tensors as bytes: the dtype table, and shards in the safetensors format.

Guarantees: bits go in and out unchanged, NaN payloads, signed zeros and bfloat16 included; a shard is a valid
safetensors file. The bytes are streamed from the arrays themselves, where the safetensors library would first
build the whole file in memory (``docs/adr/0003``); its reader opens every shard, and tests hold that.
Any thread; the arrays must not change meanwhile.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Role = Literal["weights", "optimizer", "accumulators", "state"]
Lifetime = Literal["frozen", "cycle", "micro"]
Array = npt.NDArray[np.generic]

ROLES: tuple[Role, ...] = ("weights", "optimizer", "accumulators", "state")

# Name in the safetensors header -> NumPy dtype that carries the bits. BF16 has none of its own in NumPy.
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

_NAME_OF = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}

SHARD_BYTES = 1 << 30
CHUNK_BYTES = 8 << 20


def size_bytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; ``dtype`` is a name in `DTYPES`."""
    return math.prod(shape) * DTYPES[dtype].itemsize


@dataclass(frozen=True)
class Leaf:
    """One tensor of a checkpoint.

    Attributes:
        name: Unique in the checkpoint.
        role: Which kind of file it goes to.
        lifetime: How long its bytes stay as they are: ``cycle`` until the next update, ``micro`` until the
            next micro-step, ``frozen`` for the whole attempt.
        dtype: Name in `DTYPES`.
        shape: Of the tensor; ``()`` for a scalar.
        array: Its bits, C-contiguous, in the NumPy dtype of `DTYPES`.
    """

    name: str
    role: Role
    lifetime: Lifetime
    dtype: str
    shape: tuple[int, ...]
    array: Array

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return size_bytes_of(self.dtype, self.shape)

    def memory(self) -> memoryview:
        """The bits as a flat view of unsigned bytes, without a copy."""
        return self.array.reshape(-1).view(np.uint8).data


def leaf_of(name: str, array: Array, *, role: Role, lifetime: Lifetime = "micro") -> Leaf:
    """Describe a NumPy array; bfloat16 is recognised by the name of its dtype.

    Raises:
        TypeError: If safetensors has no such dtype; names the leaf.
    """
    if array.dtype.itemsize == 2 and array.dtype.name == "bfloat16":  # the name takes NumPy long
        dtype = "BF16"
        array = array.view(np.uint16)
    else:
        known = _NAME_OF.get(array.dtype.newbyteorder("<"))
        if known is None or array.dtype.byteorder == ">":
            raise TypeError(f"{name}: dtype {array.dtype} cannot be stored in a safetensors file")
        dtype = known
    bits = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return Leaf(name, role, lifetime, dtype, tuple(array.shape), bits)


@dataclass(frozen=True)
class Shard:
    """Leaves that share a file, in file order, with the file's header."""

    role: Role
    frozen: bool
    leaves: tuple[Leaf, ...]
    header: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(leaf.size_bytes for leaf in self.leaves)

    def offsets_bytes(self) -> Iterator[tuple[Leaf, int]]:
        """Each leaf with its offset from the start of the file."""
        at = len(self.header)
        for leaf in self.leaves:
            yield leaf, at
            at += leaf.size_bytes

    def chunks(self) -> Iterator[memoryview]:
        """The file's bytes in order, in pieces of at most `CHUNK_BYTES`."""
        yield memoryview(self.header)
        for leaf in self.leaves:
            memory = leaf.memory()
            for start in range(0, len(memory), CHUNK_BYTES):
                yield memory[start : start + CHUNK_BYTES]


def into_shards(leaves: Sequence[Leaf], shard_bytes: int = SHARD_BYTES) -> list[Shard]:
    """Group ``leaves`` by role and frozenness into files of about ``shard_bytes``; a leaf is never cut.

    Raises:
        ValueError: If a name stands twice, or is reserved by safetensors.
    """
    names = [leaf.name for leaf in leaves]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"leaf names must be unique; these stand more than once: {twice[:10]}")
    if "__metadata__" in names:
        raise ValueError("the leaf name '__metadata__' is reserved by the safetensors format")
    shards: list[Shard] = []
    for role in ROLES:
        for frozen in (True, False):
            chosen = [leaf for leaf in leaves if leaf.role == role and (leaf.lifetime == "frozen") == frozen]
            shards.extend(_shard(role, frozen, part) for part in _parts(chosen, shard_bytes))
    return shards


def _parts(leaves: list[Leaf], shard_bytes: int) -> Iterator[list[Leaf]]:
    part: list[Leaf] = []
    filled = 0
    for leaf in leaves:
        if part and filled + leaf.size_bytes > shard_bytes:
            yield part
            part, filled = [], 0
        part.append(leaf)
        filled += leaf.size_bytes
    if part:
        yield part


def _shard(role: Role, frozen: bool, leaves: list[Leaf]) -> Shard:
    # Wide elements first keeps every tensor aligned to its item size, as the safetensors library does.
    ordered = sorted(leaves, key=lambda leaf: (-DTYPES[leaf.dtype].itemsize, leaf.name))
    table: dict[str, object] = {}
    at = 0
    for leaf in ordered:
        end = at + leaf.size_bytes
        table[leaf.name] = {"dtype": leaf.dtype, "shape": list(leaf.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return Shard(role, frozen, tuple(ordered), len(text).to_bytes(8, "little") + text)
