"""The shards of one rank of a checkpoint as a stream: into any memory, digested on the way.

Guarantees: `ShardStream.read_into` returns only after the digest of every file that it read agreed, and reads each
byte once; beside the memory that it is given it needs one chunk, and remembers the header of each file. When it
raises, that memory holds anything. Any thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from ckptkit.errors import CorruptCheckpointError
from ckptkit.manifest import ShardEntry, TensorEntry
from ckptkit.run.names import CheckpointName
from ckptkit.run.read import check_digest, missing
from ckptkit.storage import Storage
from ckptkit.tensors import DTYPES, Array

_BETWEEN_BYTES = 2 << 20  # of what is no tensor, remembered per file


class _Piece(NamedTuple):
    """Consecutive bytes of a file: of a tensor, wanted or not, or of what is between them."""

    tensor: TensorEntry | None
    wanted: bool
    memory: memoryview
    last: bool


class ShardStream:
    """Reads shards; a `ckptkit.contents.Source`.

    Args:
        storage: The run root.
        name: The checkpoint, for telling a removed one from a corrupt one.
        shards: Of one rank, their sizes compared with what lies on storage.
        report: Called with a number of bytes whenever so many more have been read.
    """

    def __init__(
        self,
        storage: Storage,
        name: CheckpointName,
        shards: Sequence[ShardEntry],
        report: Callable[[int], None] | None = None,
    ) -> None:
        self._storage = storage
        self._name = name
        self._shards = tuple(shards)
        self._report = report
        self._between: dict[str, bytes] = {}

    def read_into(self, targets: Mapping[str, memoryview], done: Callable[[str], None] | None = None) -> None:
        """As `ckptkit.contents.Contents.read_into`."""
        for shard in self._shards:
            if any(one.name in targets for one in shard.tensors):
                self._read(shard, targets, done)

    def peek(self, name: str) -> Array:
        """As `ckptkit.contents.Contents.peek`."""
        shard, entry = next((s, one) for s in self._shards for one in s.tensors if one.name == name)
        bits = np.empty(entry.shape, DTYPES[entry.dtype])
        self._fill(shard, [bits.reshape(-1).view(np.uint8).data], entry.offset_bytes)
        return bits

    def prove(self, names: Collection[str] | None = None) -> None:
        """As `ckptkit.contents.Contents.prove`; without names, every shard."""
        for shard in self._shards:
            if names is None or any(one.name in names for one in shard.tensors):
                self._read(shard, {}, None)

    def differing(self, held: Mapping[str, memoryview]) -> frozenset[str]:
        """As `ckptkit.contents.Contents.differing`."""
        changed = [shard for shard in self._shards if shard.role != "state" and not self._is_held(shard, held)]
        return frozenset(one.name for shard in changed for one in shard.tensors)

    def _read(self, shard: ShardEntry, targets: Mapping[str, memoryview], done: Callable[[str], None] | None) -> None:
        hasher = xxhash.xxh3_128()
        between = bytearray()
        at = 0
        for window in _windows(shard, targets, self._storage.window_bytes):
            at += self._fill(shard, [piece.memory for piece in window], at)
            for piece in window:
                hasher.update(piece.memory)
                if piece.tensor is None:
                    between += piece.memory[: _BETWEEN_BYTES - len(between)]  # a hostile file may be nothing else
                elif piece.wanted and piece.last and done is not None:
                    done(piece.tensor.name)
        check_digest(shard, hasher.hexdigest())
        self._between[shard.key] = bytes(between)

    def _is_held(self, shard: ShardEntry, held: Mapping[str, memoryview]) -> bool:
        between = self._between.get(shard.key)
        if between is None or any(one.name not in held for one in shard.tensors):
            return False
        hasher = xxhash.xxh3_128()
        at = 0
        for tensor, size_bytes in _segments(shard):
            if tensor is not None:
                hasher.update(held[tensor.name])
            else:
                hasher.update(between[at : at + size_bytes])
                at += size_bytes
        return hasher.hexdigest() == shard.digest

    def _fill(self, shard: ShardEntry, buffers: Sequence[memoryview], start: int) -> int:
        wanted = sum(map(len, buffers))
        try:
            count = self._storage.read_into(shard.key, buffers, start)
        except FileNotFoundError as error:
            raise missing(self._storage, self._name, shard.key) from error
        if count != wanted:
            raise CorruptCheckpointError(f"{shard.key} ends at byte {start + count}, expected {shard.size_bytes}")
        if self._report is not None:
            self._report(count)
        return count


def _segments(shard: ShardEntry) -> Iterator[tuple[TensorEntry | None, int]]:
    """The whole file in order: each tensor, and what lies before, between and behind them, with its size."""
    at = 0
    for tensor in shard.tensors:
        if tensor.offset_bytes > at:
            yield None, tensor.offset_bytes - at
        yield tensor, tensor.size_bytes
        at = tensor.offset_bytes + tensor.size_bytes
    if shard.size_bytes > at:
        yield None, shard.size_bytes - at


def _windows(shard: ShardEntry, targets: Mapping[str, memoryview], window_bytes: int) -> Iterator[list[_Piece]]:
    """The file in parts of ``window_bytes``; what is not in ``targets`` gets memory that the next part reuses."""
    scratch = memoryview(bytearray(min(window_bytes, shard.size_bytes)))
    window: list[_Piece] = []
    filled = 0
    for tensor, size_bytes in _segments(shard):
        if window and size_bytes > window_bytes - filled:
            yield window  # so that memory for this tensor is asked for after the one before it was done
            window, filled = [], 0
        wanted = tensor is not None and tensor.name in targets
        memory = _memory(tensor, targets) if tensor is not None and wanted else None
        start = 0
        while True:
            count = min(window_bytes - filled, size_bytes - start)
            part = memory[start : start + count] if memory is not None else scratch[filled : filled + count]
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


def _memory(tensor: TensorEntry, targets: Mapping[str, memoryview]) -> memoryview:
    memory = targets[tensor.name]
    if memory.format != "B" or memory.ndim != 1 or len(memory) != tensor.size_bytes:
        raise ValueError(f"{tensor.name} has {tensor.size_bytes} bytes, its target is {memory.nbytes} bytes of memory")
    return memory
