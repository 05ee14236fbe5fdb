"""Plans which leaf goes into which file, and at which offset: shards in the safetensors format.

A plan depends on the specs of the leaves and not on their bits, so one plan serves every save with the same leaves.
Bytes are streamed, whereas the safetensors library would first build the whole file (``docs/adr/0007``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ckptkit.core.placement import Box, Tag, tag_of
from ckptkit.core.tensors import DTYPES, ROLES, LeafSpec, Role
from ckptkit.format.documents import Blocks, Part, ShardEntry, TensorEntry

SHARD_BYTES = 1 << 30
_TAGS: tuple[Tag, ...] = ("replicated", "per_rank", "sharded")


@dataclass(frozen=True, eq=False)
class Shard:
    role: Role
    frozen: bool
    placement: Tag
    leaves: tuple[LeafSpec, ...]
    header: bytes

    @property
    def has_blocks(self) -> bool:
        """Whether the rank's document holds digests of its blocks, because another cut may need parts of it."""
        return self.placement == "sharded"

    @cached_property
    def size_bytes(self) -> int:
        return len(self.header) + sum(leaf.size_bytes for leaf in self.leaves)

    @cached_property
    def table(self) -> list[TensorEntry]:
        return [
            TensorEntry(
                name=leaf.name,
                dtype=leaf.dtype,
                shape=list(leaf.shape),
                offset_bytes=offset,
                size_bytes=leaf.size_bytes,
                placement=self.placement,
                part=_part(leaf),
            )
            for leaf, offset in self.offsets_bytes()
        ]

    def entry(self, key: str, digest: str, blocks: Blocks | None) -> ShardEntry:
        return ShardEntry(
            key=key, size_bytes=self.size_bytes, digest=digest, role=self.role, tensors=self.table, blocks=blocks
        )

    def offsets_bytes(self) -> Iterator[tuple[LeafSpec, int]]:
        at = len(self.header)
        for leaf in self.leaves:
            yield leaf, at
            at += leaf.size_bytes


def plan_shards(
    leaves: Sequence[LeafSpec], shard_bytes: int = SHARD_BYTES, *, rank: int = 0, ranks: int = 1
) -> list[Shard]:
    """Group ``leaves`` by role, frozenness and placement into files of about ``shard_bytes``; a leaf is never cut."""
    names = [leaf.name for leaf in leaves]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"leaf names must be unique; used more than once: {twice[:10]}")
    if "__metadata__" in names:
        raise ValueError("the leaf name '__metadata__' is reserved by the safetensors format")
    kinds: dict[tuple[Role, bool, Tag], list[LeafSpec]] = {
        (role, frozen, tag): [] for role in ROLES for frozen in (True, False) for tag in _TAGS
    }
    for leaf in leaves:
        kinds[leaf.role, leaf.lifetime == "frozen", tag_of(leaf.placement)].append(leaf)
    writer = f"{rank}/{ranks}" if ranks > 1 else None
    return [_shard(*kind, part, writer) for kind, chosen in kinds.items() for part in _parts(chosen, shard_bytes)]


def _part(leaf: LeafSpec) -> Part | None:
    box = leaf.placement if isinstance(leaf.placement, Box) else leaf.part
    return None if box is None else Part(global_shape=list(box.global_shape), offsets=list(box.offsets))


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


def _shard(role: Role, frozen: bool, placement: Tag, leaves: list[LeafSpec], writer: str | None) -> Shard:
    # Wide elements first, as in the safetensors library: this aligns every tensor to its item size.
    ordered = sorted(leaves, key=lambda leaf: (-DTYPES[leaf.dtype].itemsize, leaf.name))
    table: dict[str, object] = {} if writer is None else {"__metadata__": {"rank": writer}}
    at = 0
    for leaf in ordered:
        end = at + leaf.size_bytes
        table[leaf.name] = {"dtype": leaf.dtype, "shape": list(leaf.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return Shard(role, frozen, placement, tuple(ordered), len(text).to_bytes(8, "little") + text)
