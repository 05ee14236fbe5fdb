"""Loads the contents of an opened checkpoint, and reads leaves into any memory, verified on the way.

Guarantees: sizes are compared before memory is allocated, so a hostile manifest asks for no more than what is stored.
`ShardStream.read_into` returns only after the digest of every file that it read matched; if it raises, the given memory
holds undefined bytes. Besides that memory it needs a window per lane. Any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import xxhash

from ckptkit.checkpoint.commit import reread_if_corrupt
from ckptkit.checkpoint.leaves import ShardBytes, StoredLeaf, StoredLeaves, StoredPiece
from ckptkit.checkpoint.open import OpenedCheckpoint, check_digest, missing
from ckptkit.checkpoint.parts import CutOut, read_sharded
from ckptkit.core.contents import Buffers, Contents, Sink, WantedPart
from ckptkit.core.latch import Latch
from ckptkit.core.parallel import each_of
from ckptkit.core.placement import Box
from ckptkit.core.tensors import Array, bytes_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import ShardEntry, TensorEntry
from ckptkit.format.layout import CheckpointName, frozen_folder
from ckptkit.storage import Storage

_LANES_FROM_BYTES = 16 << 20  # less is not worth threads
_BETWEEN_BYTES = 2 << 20  # how many bytes outside of tensors are kept per file
_GLANCE_SECONDS = 0.5
_TURNS_AT_ONCE = 1024  # a checkpoint of terabytes has millions


class _Piece(NamedTuple):
    """Holds consecutive bytes of a file: of a tensor, wanted or not, or between tensors."""

    tensor: TensorEntry | None
    wanted: bool
    memory: memoryview
    last: bool


class _FileDigest:
    """Digests the windows of one file, in order, and keeps what lies between its tensors."""

    def __init__(self, shard: ShardEntry) -> None:
        self._shard = shard
        self._hasher = xxhash.xxh3_128()
        self._between = bytearray()

    def take(self, window: Sequence[_Piece], filled: Callable[[str], None]) -> None:
        """Take the next window, which was read, and call ``filled`` with the name of each leaf that ends in it."""
        for piece in window:
            self._hasher.update(piece.memory)
            if piece.tensor is None:
                left = _BETWEEN_BYTES - len(self._between)
                self._between += piece.memory[:left]  # a hostile file may hold no tensors
            elif piece.wanted and piece.last:
                filled(piece.tensor.name)

    def end(self) -> bytes:
        check_digest(self._shard, self._hasher.hexdigest())
        return bytes(self._between)


class _Turn(NamedTuple):
    """Gives a lane one window to read, and then to digest once ``before`` is open; then it opens ``done``."""

    shard: ShardEntry
    digest: _FileDigest
    window: Sequence[_Piece]
    start: int
    is_last: bool
    before: Latch
    done: Latch


class _OpenLeaves:
    """Holds the memory of whole leaves while their pieces are read; asks for it once, right before the first piece."""

    def __init__(self, sink: Sink, leaves: Mapping[str, StoredLeaf]) -> None:
        self._sink = sink
        self._leaves = leaves
        self._open: dict[str, memoryview] = {}
        self._left: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._sink.names

    def open(self, shard: ShardEntry) -> bool:
        """Take the memory of all leaves of ``shard`` at once; return whether it exists already."""
        names = [one.name for one in shard.tensors if one.name in self]
        memory = {name: ready for name in names if (ready := self._sink.ready(name)) is not None}
        if len(memory) < len(names):
            return False
        for name, one in memory.items():
            self._open[name] = _checked(one, name, self._leaves[name].info.size_bytes)
            self._left[name] = len(self._leaves[name].pieces)
        return True

    def part(self, piece: StoredPiece) -> memoryview:
        name = piece.entry.name
        if name not in self._open:
            self._open[name] = _checked(self._sink.buffer(name), name, self._leaves[name].info.size_bytes)
            self._left[name] = len(self._leaves[name].pieces)
        start = piece.start_bytes
        return self._open[name][start : start + piece.entry.size_bytes]

    def filled(self, name: str) -> None:
        self._left[name] -= 1
        if not self._left[name]:
            del self._open[name]
            self._sink.done(name)


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
        self._between: dict[str, bytes] = {}

    def read_into(self, sink: Sink) -> None:
        sharded: list[str] = []
        whole_files: list[ShardEntry] = []
        for shard in self._shards:
            names = [one.name for one in shard.tensors if one.name in sink.names]
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
        if others:
            self.read_into(CutOut({part.name: self._leaves[part.name].info for part in others}, others, done))

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
        self.prove_files([shard for shard in self._shards if any(one.name in names for one in shard.tensors)])

    def prove_files(self, shards: Sequence[ShardEntry]) -> None:
        self._read_all(shards, _OpenLeaves(Buffers({}), self._leaves))

    def differing(self, held: Mapping[str, memoryview]) -> frozenset[str]:
        changed = [shard for shard in self._shards if shard.role != "state" and not self._is_held(shard, held)]
        return frozenset(one.name for shard in changed for one in shard.tensors)

    def _read_all(self, shards: Sequence[ShardEntry], leaves: _OpenLeaves) -> None:
        in_lanes = self._read_in_lanes(shards, leaves)
        for batch in self._files.batches([shard for shard in shards if shard.key not in in_lanes]):
            with self._files.fetched(batch):
                for shard in batch:
                    for name in reread_if_corrupt(partial(self._read, shard, leaves)):
                        leaves.filled(name)

    def _read(self, shard: ShardEntry, leaves: _OpenLeaves) -> Sequence[str]:
        """Read and verify a file; return the leaf of each piece in it, whose memory is kept for a second reading."""
        digest = _FileDigest(shard)
        filled: list[str] = []
        window_bytes = self._files.window_bytes
        scratch = memoryview(bytearray(min(window_bytes, shard.size_bytes)))
        at = 0
        for window in _windows(shard, leaves, window_bytes, itertools.repeat(scratch)):
            at += self._files.fill(shard, [piece.memory for piece in window], at)
            digest.take(window, filled.append)
        self._between[shard.key] = digest.end()
        return filled

    def _read_in_lanes(self, shards: Sequence[ShardEntry], leaves: _OpenLeaves) -> Collection[str]:
        """Read files whose bytes have their memory already; return their keys."""
        if self._files.lanes < 2 or sum(one.size_bytes for one in shards) < _LANES_FROM_BYTES:
            return ()
        ready = [shard for shard in shards if shard.size_bytes and leaves.open(shard)]
        turns = self._turns(ready, leaves)
        filled: deque[str] = deque()
        while some := [*itertools.islice(turns, _TURNS_AT_ONCE)]:
            self._take_all(some, leaves, filled.append)
        self._files.tell()
        for name in filled:
            leaves.filled(name)
        return frozenset(shard.key for shard in ready)

    def _take_all(self, turns: Sequence[_Turn], leaves: _OpenLeaves, filled: Callable[[str], None]) -> None:
        ends: deque[bool] = deque()  # has an element once an error ends it all

        def stop() -> None:
            ends.append(True)
            for turn in turns:
                turn.done.open()

        each_of(turns, lambda turn: self._take(turn, leaves, filled, ends), threads=self._files.lanes, few=1, stop=stop)

    def _turns(self, shards: Sequence[ShardEntry], leaves: _OpenLeaves) -> Iterator[_Turn]:
        """Yield every window of ``shards``, in an order in which as many as there are lanes may be read at once."""
        # A lane's turn ends after those before it. So the window that is as many places back as there are lanes is
        # digested when one is begun, and its scratch memory is free.
        window_bytes = self._files.window_bytes
        scratch = itertools.cycle([memoryview(bytearray(window_bytes)) for _ in range(self._files.lanes)])
        before = Latch()
        before.open()
        for shard in shards:
            digest = _FileDigest(shard)
            windows = _windows(shard, leaves, window_bytes, scratch)
            window = next(windows, None)
            at = 0
            while window is not None:
                following = next(windows, None)
                turn = _Turn(shard, digest, window, at, following is None, before, Latch())
                yield turn
                at += sum(len(piece.memory) for piece in window)
                before, window = turn.done, following

    def _take(self, turn: _Turn, leaves: _OpenLeaves, filled: Callable[[str], None], ends: Collection[bool]) -> None:
        if ends:
            return
        self._files.fill(turn.shard, [piece.memory for piece in turn.window], turn.start)
        while not (turn.before.wait(_GLANCE_SECONDS) or ends):
            pass
        if ends:
            return
        turn.digest.take(turn.window, filled)
        if turn.is_last:
            reread_if_corrupt(partial(self._end, turn), partial(self._read, turn.shard, leaves))
        turn.done.open()

    def _end(self, turn: _Turn) -> Sequence[str]:
        self._between[turn.shard.key] = turn.digest.end()
        return ()

    def _is_held(self, shard: ShardEntry, held: Mapping[str, memoryview]) -> bool:
        between = self._between.get(shard.key)
        if between is None or shard.placement == "sharded" or any(one.name not in held for one in shard.tensors):
            return False
        hasher = xxhash.xxh3_128()
        at = 0
        for tensor, size_bytes in _segments(shard):
            if tensor is not None:
                start = StoredPiece(shard, tensor).start_bytes
                hasher.update(held[tensor.name][start : start + size_bytes])
            else:
                hasher.update(between[at : at + size_bytes])
                at += size_bytes
        return hasher.hexdigest() == shard.digest


def _segments(shard: ShardEntry) -> Iterator[tuple[TensorEntry | None, int]]:
    at = 0
    for tensor in shard.tensors:
        if tensor.offset_bytes > at:
            yield None, tensor.offset_bytes - at
        yield tensor, tensor.size_bytes
        at = tensor.offset_bytes + tensor.size_bytes
    if shard.size_bytes > at:
        yield None, shard.size_bytes - at


def _windows(
    shard: ShardEntry, leaves: _OpenLeaves, window_bytes: int, scratch: Iterator[memoryview]
) -> Iterator[list[_Piece]]:
    """Yield the file in parts of ``window_bytes``; the bytes of a part not in ``leaves`` get the next ``scratch``."""
    window: list[_Piece] = []
    filled = 0
    for tensor, size_bytes in _segments(shard):
        if window and size_bytes > window_bytes - filled:
            yield window  # now, so that the previous tensor is done before memory for this one is requested
            window, filled = [], 0
        wanted = tensor is not None and tensor.name in leaves
        memory = leaves.part(StoredPiece(shard, tensor)) if tensor is not None and wanted else None
        start = 0
        while True:
            if not window:
                spare = next(scratch)
            count = min(window_bytes - filled, size_bytes - start)
            part = memory[start : start + count] if memory is not None else spare[filled : filled + count]
            start += count
            filled += count
            window.append(_Piece(tensor, wanted, part, last=start == size_bytes))
            if filled == window_bytes:
                yield window
                window, filled = [], 0
            if start == size_bytes:
                break
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
    """Load the contents for ``rank``: its own tensors and state, and the tensors that all ranks share."""
    if not sizes_known:
        check_sizes(storage, opened)
    return _contents(storage, opened, StoredLeaves(opened.ranks), rank, report=report)


def _contents(
    storage: Storage,
    opened: OpenedCheckpoint,
    stored: StoredLeaves,
    rank: int,
    *,
    report: Callable[[int], None] | None,
) -> Contents:
    document = opened.ranks[rank]
    leaves = stored.of_rank(rank)
    entries = {name: leaf.info for name, leaf in leaves.items()}
    stream = ShardStream(storage, opened.name, leaves, report)
    state_tensors = {name: one.empty() for name, one in entries.items() if one.role == "state"}
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
    shards = [shard for document in opened.ranks for shard in document.shards]
    # One walk covers the folders of all ranks; only shared frozen shards lie elsewhere.
    found = dict(storage.walk(f"{opened.name.folder}/"))
    folder = frozen_folder(opened.name.attempt)
    if any(shard.key.startswith(f"{folder}/") for shard in shards):
        found.update({f"{folder}/{file}": size for file, size in storage.list(folder).files.items()})
    for shard in shards:
        if found.get(shard.key) != shard.size_bytes:
            with contextlib.suppress(FileNotFoundError):
                storage.read(shard.key, 0)  # raises if a link is there, or something else that is no file
        if shard.key not in found:
            raise missing(storage, opened.name, shard.key)
        if found[shard.key] != shard.size_bytes:
            raise CorruptCheckpointError(f"{shard.key} has {found[shard.key]} bytes, expected {shard.size_bytes}")
