"""Loads the contents of an opened checkpoint, and reads leaves into any memory, verified on the way.

Sizes are compared before memory is allocated, so a hostile manifest asks for no more than what is stored.
`ShardStream.read_into` returns only after the digest of every file that it read matched; if it raises, the given memory
holds undefined bytes. Besides that memory it needs a buffer per thread. Any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import xxhash

from ckptkit.checkpoint.open import OpenedCheckpoint, check_digest, compare_size
from ckptkit.checkpoint.parts import WholeLeaves, cut_out, read_sharded
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.checkpoint.shard_bytes import ShardBytes, StoredLeaf, StoredLeaves, StoredPiece
from ckptkit.core.contents import Buffers, Contents, Sink, WantedPart
from ckptkit.core.placement import Box
from ckptkit.core.tensors import Array, bytes_of
from ckptkit.core.worker import Latch, each_of
from ckptkit.format.documents import ShardEntry, TensorEntry
from ckptkit.format.layout import CheckpointName, frozen_folder
from ckptkit.storage import Storage

_LANES_FROM_BYTES = 16 << 20  # less is not worth threads


class _OpenLeaves:
    """Holds the memory of whole leaves while their pieces are read; asks for it once, right before the first piece."""

    def __init__(self, sink: Sink, leaves: Mapping[str, StoredLeaf]) -> None:
        self._sink = sink
        self._leaves = leaves
        self._open: dict[str, memoryview] = {}
        self._left: dict[str, int] = {}

    def names_of(self, shard: ShardEntry) -> list[str]:
        return [tensor.name for tensor in shard.tensors if tensor.name in self._sink.names]

    def open(self, shard: ShardEntry) -> bool:
        """Take the memory of all leaves of ``shard`` at once; return whether it exists already."""
        memory = {name: self._sink.ready(name) for name in self.names_of(shard)}
        exists = None not in memory.values()
        for name, ready in memory.items():
            if exists and name not in self._open and ready is not None:
                self._begin(name, ready)
        return exists

    def needed_bytes(self, shard: ShardEntry) -> int:
        """Return how much memory the reading of ``shard`` may take, if none of its leaves exists yet."""
        return max(shard.size_bytes, sum(self._leaves[name].info.size_bytes for name in self.names_of(shard)))

    def take(self, shard: ShardEntry) -> None:
        """Ask for the memory of all leaves of ``shard``; in the caller's thread, as a sink expects."""
        for name in self.names_of(shard):
            if name not in self._open:
                self._begin(name, self._sink.buffer(name))

    def part(self, piece: StoredPiece) -> memoryview:
        start = piece.start_bytes
        return self._open[piece.entry.name][start : start + piece.entry.size_bytes]

    def _begin(self, name: str, memory: memoryview) -> None:
        self._open[name] = _checked(memory, name, self._leaves[name].info.size_bytes)
        self._left[name] = len(self._leaves[name].pieces)

    def filled(self, name: str) -> None:
        self._left[name] -= 1
        if not self._left[name]:
            del self._open[name]
            self._sink.done(name)


class _StoppedError(Exception):
    """Raised by a lane that need not read on; `each_of` raises the error that stopped it, which came first."""


class ShardStream:
    """Reads leaves; implements `ckptkit.core.contents.Source`."""

    def __init__(
        self,
        storage: Storage,
        name: CheckpointName,
        leaves: Mapping[str, StoredLeaf],
        report: Callable[[int], None] | None = None,
    ) -> None:
        self._files = ShardBytes(storage, name, report)
        self._leaves = leaves
        pieces = [piece for leaf in leaves.values() for piece in leaf.pieces]
        self._shards = tuple({piece.shard.key: piece.shard for piece in pieces}.values())

    def read_into(self, sink: Sink) -> None:
        sharded: list[str] = []
        whole_files: list[ShardEntry] = []
        for shard in self._shards:
            names = [tensor.name for tensor in shard.tensors if tensor.name in sink.names]
            if names and shard.placement != "sharded":
                whole_files.append(shard)
            elif names:
                sharded += names
        self._read_all(whole_files, _OpenLeaves(sink, self._leaves))
        for name in dict.fromkeys(sharded):
            info = self._leaves[name].info
            memory = _checked(sink.buffer(name), name, info.size_bytes)
            whole = WantedPart(name, Box(info.shape, (0,) * len(info.shape)), info.shape, memory)
            read_sharded(self._files, self._leaves, [whole], sink.done)

    def read_parts(self, wanted: Sequence[WantedPart], done: Callable[[str], None] | None = None) -> None:
        sharded = [part for part in wanted if self._leaves[part.name].info.placement == "sharded"]
        others = [part for part in wanted if self._leaves[part.name].info.placement != "sharded"]
        read_sharded(self._files, self._leaves, sharded, done)

        def cut(name: str, whole: Array) -> None:
            for part in others:
                if part.name == name:
                    cut_out(whole, part)
                    if done is not None:
                        done(name)

        infos = {part.name: self._leaves[part.name].info for part in others}
        self.read_into(WholeLeaves(infos, infos.keys(), cut))

    def peek(self, name: str) -> Array:
        leaf = self._leaves[name]
        bits = leaf.info.empty()
        memory = bytes_of(bits).data
        if leaf.info.placement == "sharded":
            self.read_into(Buffers({name: memory}))
            return bits
        for piece in leaf.pieces:
            part = memory[piece.start_bytes : piece.start_bytes + piece.entry.size_bytes]
            self._files.fill(piece.shard, [part], piece.entry.offset_bytes)
        return bits

    def prove(self, names: Collection[str]) -> None:
        self.prove_files([shard for shard in self._shards if any(tensor.name in names for tensor in shard.tensors)])

    def prove_files(self, shards: Sequence[ShardEntry]) -> None:
        self._read_all(shards, _OpenLeaves(Buffers({}), self._leaves))

    def _read_all(self, shards: Sequence[ShardEntry], leaves: _OpenLeaves) -> None:
        """Read several files at once: those whose bytes have their memory already, and any of a remote storage.

        Memory that does not exist yet is asked for by groups, each of at most a window or one file.
        """
        ready: list[ShardEntry] = []
        if self._files.is_remote or sum(shard.size_bytes for shard in shards) >= _LANES_FROM_BYTES:
            ready = [shard for shard in shards if leaves.open(shard)]
        keys = {shard.key for shard in ready}
        rest = [shard for shard in shards if shard.key not in keys]
        others = self._files.groups(rest, leaves.needed_bytes) if self._files.is_remote else ([shard] for shard in rest)
        for group in (*self._files.groups(ready), *others):
            for shard in group:
                leaves.take(shard)
            stop = Latch()
            read = partial(self._read, leaves, stop)
            each_of(group, read, threads=self._files.lanes, few=self._files.few, stop=stop.open)
            for name in itertools.chain.from_iterable(map(leaves.names_of, group)):
                leaves.filled(name)

    def _read(self, leaves: _OpenLeaves, stop: Latch, shard: ShardEntry) -> None:
        reread_if_corrupt(partial(self._read_once, leaves, stop, shard))

    def _read_once(self, leaves: _OpenLeaves, stop: Latch, shard: ShardEntry) -> None:
        hasher, at = xxhash.xxh3_128(), 0
        if stop.is_open:
            raise _StoppedError  # instead of reading once more
        for window in _windows(shard, leaves, self._files.window_bytes):
            at += self._files.fill(shard, window, at)
            if stop.is_open:
                raise _StoppedError
            for memory in window:
                hasher.update(memory)
        check_digest(shard, hasher.hexdigest())


def _segments(shard: ShardEntry) -> Iterator[tuple[TensorEntry | None, int]]:
    """Yield the tensors of a file and the gaps between them, with their sizes in bytes."""
    at = 0
    for tensor in shard.tensors:
        yield None, tensor.offset_bytes - at
        yield tensor, tensor.size_bytes
        at = tensor.offset_bytes + tensor.size_bytes
    yield None, shard.size_bytes - at


def _windows(shard: ShardEntry, leaves: _OpenLeaves, window_bytes: int) -> Iterator[list[memoryview]]:
    """Yield the file in parts of ``window_bytes``; what is not wanted shares memory with other windows."""
    scratch = memoryview(bytearray(min(window_bytes, shard.size_bytes)))
    wanted = frozenset(leaves.names_of(shard))
    window: list[memoryview] = []
    filled = 0
    for tensor, size_bytes in _segments(shard):
        leaf = leaves.part(StoredPiece(shard, tensor)) if tensor is not None and tensor.name in wanted else None
        at = 0
        while at < size_bytes:
            count = min(window_bytes - filled, size_bytes - at)
            window.append(scratch[filled : filled + count] if leaf is None else leaf[at : at + count])
            at += count
            filled += count
            if filled == window_bytes:
                yield window
                window, filled = [], 0
    if window:
        yield window


def _checked(memory: memoryview, name: str, size_bytes: int) -> memoryview:
    if memory.format != "B" or memory.ndim != 1 or len(memory) != size_bytes:
        raise ValueError(f"{name} has {size_bytes} bytes, but its target has {memory.nbytes} bytes of memory")
    return memory


def load(
    storage: Storage,
    opened: OpenedCheckpoint,
    rank: int = 0,
    *,
    report: Callable[[int], None] | None = None,
    sizes_known: bool = False,
) -> Contents:
    """Compare sizes, and read what is no parameter; `Contents` reads all else when it is asked."""
    if not sizes_known:
        check_sizes(storage, opened)
    return _contents(storage, opened, StoredLeaves(opened.ranks), rank, report=report)


def _contents(
    storage: Storage, opened: OpenedCheckpoint, stored: StoredLeaves, rank: int, *, report: Callable[[int], None] | None
) -> Contents:
    document = opened.ranks[rank]
    leaves = stored.of_rank(rank)
    entries = {name: leaf.info for name, leaf in leaves.items()}
    stream = ShardStream(storage, opened.name, leaves, report)
    state_tensors = {name: info.empty() for name, info in entries.items() if info.role == "state"}
    stream.read_into(Buffers({name: bytes_of(array).data for name, array in state_tensors.items()}))
    return Contents(
        str(opened.name),
        opened.manifest.progress,
        entries,
        document.state,
        state_tensors,
        stream,
        rank=rank,
        world_size=opened.manifest.world_size,
        of_rank=functools.partial(_contents, storage, opened, stored, report=report),
        root=storage.url,
    )


def verify(storage: Storage, opened: OpenedCheckpoint) -> None:
    check_sizes(storage, opened)
    StoredLeaves(opened.ranks)
    stream = ShardStream(storage, opened.name, {})
    for document in opened.ranks:
        stream.prove_files(document.shards)


def check_sizes(storage: Storage, opened: OpenedCheckpoint) -> None:
    sizes = sizes_at(storage, opened)
    for shard in [shard for document in opened.ranks for shard in document.shards]:
        if sizes.get(shard.key) != shard.size_bytes:
            with contextlib.suppress(FileNotFoundError):
                storage.read(shard.key, 0)  # raises if a link is there, or something else that is no file
            compare_size(storage, opened.name, shard.key, sizes.get(shard.key), shard.size_bytes)


def sizes_at(storage: Storage, opened: OpenedCheckpoint) -> dict[str, int]:
    # One walk covers the folders of all ranks; only shared frozen shards lie elsewhere.
    sizes = dict(storage.walk(f"{opened.name.folder}/"))
    folder = frozen_folder(opened.name.attempt)
    if any(shard.key.startswith(f"{folder}/") for document in opened.ranks for shard in document.shards):
        sizes.update({f"{folder}/{file}": size for file, size in storage.list(folder).files.items()})
    return sizes
