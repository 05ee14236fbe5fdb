"""Which leaf goes into which file, and where: shards in the safetensors format.

Guarantees: a shard is a valid safetensors file. Its bytes are streamed, where the safetensors library would first
build the whole file in memory (``docs/adr/0003``); its reader opens every shard, and tests hold that. A plan is made
of what the leaves are, not of their bits, so one plan serves every save with the same leaves. Pure values, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ckptkit.manifest import TensorEntry
from ckptkit.tensors import DTYPES, ROLES, LeafSpec, Role

SHARD_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Shard:
    """Leaves that share a file.

    Attributes:
        role: Of its leaves.
        frozen: Whether the checkpoints of an attempt share it.
        leaves: In file order.
        header: First bytes of the file.
    """

    role: Role
    frozen: bool
    leaves: tuple[LeafSpec, ...]
    header: bytes

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + sum(leaf.size_bytes for leaf in self.leaves)

    @cached_property
    def table(self) -> list[TensorEntry]:
        """Its tensors as the rank's document lists them."""
        return [
            TensorEntry(
                name=leaf.name,
                dtype=leaf.dtype,
                shape=list(leaf.shape),
                offset_bytes=offset,
                size_bytes=leaf.size_bytes,
            )
            for leaf, offset in self.offsets_bytes()
        ]

    def offsets_bytes(self) -> Iterator[tuple[LeafSpec, int]]:
        """Each leaf with its offset from the start of the file."""
        at = len(self.header)
        for leaf in self.leaves:
            yield leaf, at
            at += leaf.size_bytes


def plan_shards(leaves: Sequence[LeafSpec], shard_bytes: int = SHARD_BYTES) -> list[Shard]:
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


def _parts(leaves: list[LeafSpec], shard_bytes: int) -> Iterator[list[LeafSpec]]:
    part: list[LeafSpec] = []
    filled = 0
    for leaf in leaves:
        if part and filled + leaf.size_bytes > shard_bytes:
            yield part
            part, filled = [], 0
        part.append(leaf)
        filled += leaf.size_bytes
    if part:
        yield part


def _shard(role: Role, frozen: bool, leaves: list[LeafSpec]) -> Shard:
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
