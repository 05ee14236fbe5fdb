"""Maps each leaf of a checkpoint to the files that hold its pieces, over all ranks, and reads bytes of these files.

Every byte of a leaf that ranks share is in exactly one file, as far as sizes show (`parts` compares those of a sharded
leaf that it reads), and a name means the same leaf in all ranks. `ShardBytes` fills the given memory whole and verifies
nothing; `ProvenFiles` verifies what it reads to its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from ckptkit.checkpoint.open import check_digest, missing
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.core.contents import TensorInfo
from ckptkit.core.placement import first_element
from ckptkit.core.tensors import DTYPES
from ckptkit.core.worker import FEW, THREADS
from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.documents import FileEntry, RankManifest, ShardEntry, TensorEntry
from ckptkit.format.layout import CheckpointName
from ckptkit.storage import Storage


class StoredPiece(NamedTuple):
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
    info: TensorInfo
    pieces: tuple[StoredPiece, ...]


class StoredLeaves:
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
        total_bytes = sum(piece.entry.size_bytes for piece in pieces)
        if total_bytes != info.size_bytes:
            raise _wrong(pieces[0], f"whose parts have {total_bytes} bytes in total, expected {info.size_bytes}")
        return StoredLeaf(info, tuple(pieces))
    if len(pieces) > 1 and any(piece.entry.part is None for piece in pieces):
        raise _wrong(pieces[0], "which is stored more than once")
    at = 0
    for piece in sorted(pieces, key=lambda piece: (piece.start_bytes, piece.entry.size_bytes)):
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


_LANES = 4  # more would compete for the memory's bandwidth
_OPEN = 2
_WINDOW_BYTES = 32 << 20


class ShardBytes:
    """Reads bytes of the shards of a checkpoint without verifying them."""

    def __init__(self, storage: Storage, name: CheckpointName, report: Callable[[int], None] | None = None) -> None:
        self._storage = storage
        self._name = name
        self._report = report
        self.window_bytes = storage.window_bytes
        self.is_remote = storage.is_remote
        # A remote storage reads a large file in lanes of its own; many small ones wait for each other's answers.
        self.lanes = THREADS if storage.is_remote else min(_LANES, os.cpu_count() or 1)
        self.few = FEW if storage.is_remote else 1

    def fill(self, shard: FileEntry, buffers: Sequence[memoryview], start: int) -> int:
        """Fill ``buffers`` with the bytes from ``start`` on; return how many. Reports them, in any thread."""

        def read() -> int:
            count = self._storage.read_into(shard.key, buffers, start)
            if count != sum(map(len, buffers)):
                raise CorruptCheckpointError(f"{shard.key} ends at byte {start + count}, expected {shard.size_bytes}")
            return count

        try:
            count = reread_if_corrupt(read)
        except FileNotFoundError as error:
            raise missing(self._storage, self._name, shard.key) from error
        if self._report is not None:
            self._report(count)
        return count

    def groups(
        self, shards: Sequence[ShardEntry], size_of: Callable[[ShardEntry], int] = lambda shard: shard.size_bytes
    ) -> Iterator[Sequence[ShardEntry]]:
        """Group ``shards``, in order, by what may be read at once; of a remote storage, that fits into a window."""
        group: list[ShardEntry] = []
        filled = 0
        for shard in shards:
            if group and self.is_remote and filled + size_of(shard) > self.window_bytes:
                yield group
                group, filled = [], 0
            group.append(shard)
            filled += size_of(shard)
        if group:
            yield group


class VerifiedFile:
    """Reads a file mostly from its start on, ``window_bytes`` at a time, and verifies it once all of it was read."""

    def __init__(self, files: ShardBytes, file: FileEntry, window_bytes: int) -> None:
        self._files = files
        self.file = file
        self._window_bytes = min(window_bytes, file.size_bytes)
        self._hasher = xxhash.xxh3_128()
        self._memory = memoryview(b"")  # has the bytes from start to end
        self._start = self._end = 0

    def read(self, start: int, into: memoryview) -> None:
        if start < self._start:  # these bytes have left the window
            count = min(len(into), self._start - start)
            self._files.fill(self.file, [into[:count]], start)
            start, into = start + count, into[count:]
        while into:
            count = min(self._window_bytes, self.file.size_bytes - self._end)
            if start == self._end and len(into) >= count:  # a window is straight what is asked for
                self._take(into[:count])
                self._start = self._end
            else:
                while start >= self._end:
                    self._advance()
                count = min(len(into), self._end - start)
                into[:count] = self._memory[start - self._start : start - self._start + count]
            start, into = start + count, into[count:]

    def finish(self) -> None:
        """Read the rest and compare the digest."""
        while self._end < self.file.size_bytes:
            self._advance()
        check_digest(self.file, self._hasher.hexdigest())

    def _advance(self) -> None:
        self._memory = self._memory or memoryview(bytearray(self._window_bytes))
        start = self._end
        self._take(self._memory[: min(self._window_bytes, self.file.size_bytes - start)])
        self._start = start

    def _take(self, memory: memoryview) -> None:
        self._end += self._files.fill(self.file, [memory], self._end)
        self._hasher.update(memory)


class ProvenFiles:
    def __init__(self, storage: Storage, name: CheckpointName, report: Callable[[int], None]) -> None:
        self._files = ShardBytes(storage, name, report)
        self._open: dict[str, VerifiedFile] = {}
        self._done: set[str] = set()

    def read(self, shard: ShardEntry, start: int, into: memoryview) -> None:
        if shard.key in self._done:
            self._files.fill(shard, [into], start)
            return
        if shard.key not in self._open:
            while len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            self._open[shard.key] = self._opened(shard)
        self._open[shard.key].read(start, into)

    def end(self) -> None:
        for key in tuple(self._open):
            self._close(key)

    def _close(self, key: str) -> None:
        file = self._open.pop(key)
        try:
            file.finish()
        except CorruptCheckpointError as error:  # if only the first reading was wrong, its bytes are in use already
            self._opened(file.file).finish()
            raise StorageError(f"{error}, but is intact when it is read once more. Run the same again") from error
        self._done.add(key)

    def _opened(self, file: FileEntry) -> VerifiedFile:
        return VerifiedFile(self._files, file, min(self._files.window_bytes, _WINDOW_BYTES))
