"""Maps each leaf of a checkpoint to the files that hold its pieces, over all ranks.

Guarantees: every byte of a leaf that ranks share is in exactly one file, as far as sizes show. The pieces of a
replicated leaf are compared position by position, the parts of a sharded leaf by the sum of their sizes
(`ckptkit.checkpoint.parts` compares those that it reads). A name means the same leaf in all ranks, with one dtype,
role, whole shape and placement. This module reads no files. Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ckptkit.core.contents import TensorInfo
from ckptkit.core.placement import first_element
from ckptkit.core.tensors import DTYPES
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import RankManifest, ShardEntry, TensorEntry


class StoredPiece(NamedTuple):
    """Refers to a whole leaf, or a part of one, in a file."""

    shard: ShardEntry
    entry: TensorEntry

    @property
    def start_bytes(self) -> int:
        """The byte of the whole leaf at which this piece of a replicated leaf begins."""
        part = self.entry.part
        if part is None:
            return 0
        return first_element(part.global_shape, part.offsets) * DTYPES[self.entry.dtype].itemsize

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.entry.dtype, self.entry.whole_shape, self.shard.role, self.entry.placement)


@dataclass(frozen=True)
class StoredLeaf:
    """Holds a leaf and its pieces, ordered by rank."""

    info: TensorInfo
    pieces: tuple[StoredPiece, ...]


class StoredLeaves:
    """Collects the leaves of a checkpoint from the documents of its ranks."""

    def __init__(self, ranks: Sequence[RankManifest]) -> None:
        self._own: list[dict[str, StoredLeaf]] = []
        shared: dict[str, list[StoredPiece]] = {}
        for document in ranks:
            own: dict[str, StoredLeaf] = {}
            for shard in document.shards:
                for entry in shard.tensors:
                    piece = StoredPiece(shard, entry)
                    if entry.placement == "per_rank":
                        own[entry.name] = StoredLeaf(piece.info, (piece,))
                    else:
                        shared.setdefault(entry.name, []).append(piece)
            self._own.append(own)
        self._shared = {name: _together(pieces) for name, pieces in shared.items()}
        for rank, own in enumerate(self._own):
            for name in own.keys() & self._shared.keys():
                raise _wrong(
                    own[name].pieces[0], f"which belongs to rank {rank} alone there, but is shared in another file"
                )

    def of_rank(self, rank: int) -> dict[str, StoredLeaf]:
        return {**self._own[rank], **self._shared}


def _together(pieces: list[StoredPiece]) -> StoredLeaf:
    info = pieces[0].info
    for piece in pieces:
        if piece.info != info:
            raise _wrong(piece, f"which is {_words(piece.info)} there and {_words(info)} in {pieces[0].shard.key}")
    if info.placement == "sharded":
        found = sum(piece.entry.size_bytes for piece in pieces)
        if found != info.size_bytes:
            raise _wrong(pieces[0], f"whose parts have {found} bytes in total, expected {info.size_bytes}")
        return StoredLeaf(info, tuple(pieces))
    if len(pieces) > 1 and any(piece.entry.part is None for piece in pieces):
        raise _wrong(pieces[0], "which is stored more than once")
    at = 0
    for piece in sorted(pieces, key=lambda one: (one.start_bytes, one.entry.size_bytes)):
        if piece.start_bytes != at:
            what = "stored twice" if piece.start_bytes < at else "missing"
            raise _wrong(piece, f"of which byte {min(at, piece.start_bytes)} is {what}")
        at += piece.entry.size_bytes
    if at != info.size_bytes:
        raise _wrong(pieces[-1], f"of which byte {at} is missing")
    return StoredLeaf(info, tuple(pieces))


def _words(info: TensorInfo) -> str:
    return f"{info.placement} {info.role} of {info.dtype} {list(info.shape)}"[:200]


def _wrong(piece: StoredPiece, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{piece.shard.key} holds data of {piece.entry.name[:80]!r}, {what}")
