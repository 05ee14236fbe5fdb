"""Opens a window on a capture: copies at once what the next micro-step may change, and leaves the rest in place.

After `StagingArea.open` returns, no micro-step changes what the writer will get; the window's fence handles updates.
Weights that are read in place are sampled first, so that the writer notices a forward pass that changes them all the
same. The caller closes the previous window first. Training thread only.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ckptkit.core.contents import Capture
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import DTYPES, Array, Leaf, LeafSpec, bytes_of, sample_of
from ckptkit.core.worker import NoThreadError, Worker, each_of
from ckptkit.format.shards import Shard, plan_shards
from ckptkit.snapshot.buffers import (
    BUFFER_BYTES,
    Buffer,
    BufferPool,
    Bytes,
    Extent,
    Piece,
    buffer_limit_bytes,
    whole_state_bytes,
)
from ckptkit.snapshot.partition import Part, partition, taken
from ckptkit.snapshot.window import CopyAhead, Window

_log = logging.getLogger("ckptkit")
_FEW_BYTES = 32 << 20  # first touched in 24 to 29 ms on a virtual machine
_LANES = 4  # more would compete for the memory's bandwidth
_LANES_FROM_BYTES = 16 << 20  # less is not worth threads
_WINDOWS_KEPT = 8  # whose memory is kept
_PLANS_KEPT = 4  # with accumulators and without, and both again after a leaf was demoted


@dataclass(frozen=True)
class Handling:
    """Says how to treat the leaves of one capture."""

    copy_all: bool = False  # at once, because code other than the train cell may write at any time
    by_slices: bool = False  # only the training thread may access live memory
    demoted: frozenset[str] = frozenset()  # leaves that changed although they were to stay: they are copied
    settled: frozenset[str] = frozenset()  # frozen leaves that this attempt has already written
    rank: int = 0  # whose share of the capture is staged
    ranks: int = 1


@dataclass(frozen=True)
class _CopiedLeaves:
    """Lists consecutive leaves of one dtype to copy, by index in the capture; a single leaf, or all fit one buffer."""

    dtype: str
    leaves: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class _InPlace:
    leaf: int
    size_bytes: int
    held: bool


@dataclass(frozen=True)
class _Plan:
    specs: tuple[LeafSpec, ...]
    handling: Handling
    mine: list[Part]
    shards: list[Shard]
    parts: list[list[_CopiedLeaves | _InPlace]]
    size_bytes: int


class StagingArea:
    """Owns the buffers and plans of one manager.

    ``buffer_bytes`` bounds what the fence copies; a capture that has to copy more takes what it needs. Where the root
    is remote, a fence with full buffers gives up the save if nothing moves.
    """

    def __init__(
        self,
        buffer_bytes: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_remote: bool = False,
        free_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._free_bytes = free_bytes
        self._last: CopyAhead | None = None
        self._pace: float | None = None
        self._limits: deque[int] = deque(maxlen=_WINDOWS_KEPT)
        self._largest_bytes = 0
        self._buffer_bytes = buffer_bytes
        self._monotonic = monotonic
        self._is_remote = is_remote
        self._pool = BufferPool()
        self._plans: list[_Plan] = []
        self._prepares = True

    def open(self, capture: Capture, cost: SaveCost, handling: Handling) -> Window:
        """Open a window on what this rank stores of ``capture``; ValueError if a name is reserved or twice there."""
        if any(callable(leaf.source) for leaf in capture.leaves):
            handling = replace(handling, by_slices=True)
        plan = self._plan(tuple(leaf.spec for leaf in capture.leaves), handling)
        leaves = taken(capture.leaves, plan.mine)
        copying = _Copying(self._pool, cost)
        extents = [
            [
                Extent(len(shard.header), np.frombuffer(shard.header, np.uint8), held=True),
                *(self._extent(part, leaves, copying) for part in parts),
            ]
            for shard, parts in zip(plan.shards, plan.parts, strict=True)
        ]
        copying.run()
        samples = {} if handling.by_slices else _samples(plan, leaves)
        cost.buffer_bytes = self._pool.made_bytes
        window = Window(
            capture.progress,
            copy.deepcopy(dict(capture.state)),
            plan.shards,
            extents,
            self._pool,
            cost=cost,
            by_slices=handling.by_slices,
            filling=copying.buffer,
            samples=samples,
            monotonic=self._monotonic,
            gives_up=self._is_remote,
        )
        if self._last is not None and self._last.pace is not None:
            self._pace = self._last.pace
        self._last = window.ahead
        window.ahead.expect(self._pace)
        self._limit(window.ahead, plan.size_bytes, handling.ranks, copying.taken_bytes)
        return window

    def prepare(self, leaves: Sequence[Leaf], handling: Handling) -> None:
        """Make what the first save copies into, in a thread; nothing if that is little.

        The first touch of memory takes many times as long as a copy into it (on virtual machines, seconds per GB).
        """
        plan = self._plan(tuple(leaf.spec for leaf in leaves), handling)
        size_bytes = sum(part.size_bytes for parts in plan.parts for part in parts if isinstance(part, _CopiedLeaves))
        if size_bytes >= _FEW_BYTES:
            try:
                Worker(partial(self._make_buffers, size_bytes), "ckptkit-memory", gives_way=True).start()
            except NoThreadError as error:
                _log.debug("the first save makes its own memory: %s", error)

    def end_preparing(self) -> None:
        self._prepares = False

    def _make_buffers(self, size_bytes: int) -> None:
        try:
            while self._prepares and self._pool.make_one(size_bytes):
                pass
        except (OSError, MemoryError) as error:
            _log.info("there is no memory to prepare the first save with, which will make its own: %s", error)

    def _limit(self, ahead: CopyAhead, size_bytes: int, ranks: int, taken_bytes: int) -> None:
        """Set the limits of memory for what the capture has taken and later copies may take."""
        margin_bytes = ahead.lacking_bytes // 8 + BUFFER_BYTES if ahead.lacking_bytes else 0
        wanted_bytes = min(whole_state_bytes(size_bytes), ahead.lacking_bytes + margin_bytes)
        limit_bytes = buffer_limit_bytes(size_bytes, self._buffer_bytes, is_remote=self._is_remote)
        # The fence makes none beyond its own limit: waiting for the writer is mostly faster than touching memory first.
        self._pool.limit_bytes = taken_bytes + limit_bytes
        ahead.limit_bytes = taken_bytes + (
            limit_bytes if self._buffer_bytes is not None else max(limit_bytes, wanted_bytes)
        )
        ahead.memory_bytes = taken_bytes + wanted_bytes
        ahead.free_bytes, ahead.ranks = self._free_bytes, ranks
        self._limits.append(ahead.limit_bytes)
        # What a slow hour of the storage took goes back, but not at once: making it again is slow.
        if (largest_bytes := max(self._limits)) < self._largest_bytes:
            self._pool.shrink(largest_bytes)
        self._largest_bytes = largest_bytes

    def _extent(self, part: _CopiedLeaves | _InPlace, leaves: Sequence[Leaf], copying: _Copying) -> Extent:
        if isinstance(part, _InPlace):
            return Extent(part.size_bytes, leaves[part.leaf].source, held=part.held)
        extent = Extent(part.size_bytes, None)
        copying.plan(part, [leaves[place].array for place in part.leaves], extent)
        if any(callable(leaves[place].source) for place in part.leaves):
            copying.run()  # now: looking at them has made copies, which would otherwise all be in memory at once
        return extent

    def _plan(self, specs: tuple[LeafSpec, ...], handling: Handling) -> _Plan:
        # The specs are the same objects from save to save, so this comparison is quick.
        for plan in self._plans:
            if plan.handling == handling and plan.specs == specs:
                return plan
        mine = partition(specs, handling.rank, handling.ranks)
        places = {part.spec.name: place for place, part in enumerate(mine)}
        stored = [
            replace(part.spec, lifetime="micro") if part.spec.name in handling.demoted else part.spec for part in mine
        ]
        shards = plan_shards(stored, rank=handling.rank, ranks=handling.ranks)
        parts = [list(_parts(shard, places, handling)) for shard in shards]
        plan = _Plan(specs, handling, mine, shards, parts, sum(part.spec.size_bytes for part in mine))
        self._plans = [plan, *self._plans[: _PLANS_KEPT - 1]]
        return plan


class _Copying:
    """Plans the copies of groups of leaves into buffers, and then makes them: a large copy in several threads.

    Training waits for it, so the cores are free.
    """

    def __init__(self, pool: BufferPool, cost: SaveCost) -> None:
        self._pool = pool
        self._cost = cost
        self._by_buffer: list[list[Callable[[], object]]] = []
        self._planned_bytes = 0
        self.buffer: Buffer | None = None
        self.taken_bytes = 0  # of buffers

    def plan(self, group: _CopiedLeaves, arrays: list[Array], into: Extent) -> None:
        """Give the bytes of ``group`` their place in buffers, and in ``into``."""
        self._planned_bytes += group.size_bytes
        if len(arrays) > 1:
            item = DTYPES[group.dtype]
            memory = self._with_room(group.size_bytes, item.itemsize)[: group.size_bytes]
            # One call for thousands of small leaves.
            self._add(into, 0, group.size_bytes, partial(np.concatenate, arrays, axis=None, out=memory.view(item)))
            return
        source = bytes_of(arrays[0])
        at = 0
        while at < group.size_bytes:
            memory = self._with_room(1, 1)[: group.size_bytes - at]
            self._add(into, at, at + len(memory), partial(np.copyto, memory, source[at : at + len(memory)]))
            at += len(memory)

    def run(self) -> None:
        threads = min(_LANES, os.cpu_count() or 1) if self._planned_bytes >= _LANES_FROM_BYTES else 1
        each_of(self._by_buffer, lambda copies: [make() for make in copies], threads=threads, few=1)
        self._cost.copied_bytes += self._planned_bytes
        self._planned_bytes = 0
        self._by_buffer = [[]]  # the last buffer may have room

    def _with_room(self, size_bytes: int, alignment_bytes: int) -> Bytes:
        buffer = self.buffer
        if buffer is not None:
            buffer.filled_bytes += -buffer.filled_bytes % alignment_bytes
        if buffer is None or buffer.filled_bytes + size_bytes > BUFFER_BYTES:
            buffer = self._pool.take(beyond_limit=True)
            assert buffer is not None  # noqa: S101 - beyond the limit there is always one
            self.taken_bytes += BUFFER_BYTES
            self.buffer = buffer
            self._by_buffer.append([])
        return buffer.memory[buffer.filled_bytes :]

    def _add(self, extent: Extent, start: int, stop: int, copy: Callable[[], object]) -> None:
        buffer = self.buffer
        assert buffer is not None  # noqa: S101 - `_with_room` has set it
        extent.pieces.append(Piece(start, stop, buffer, buffer.filled_bytes))
        buffer.filled_bytes += stop - start
        buffer.pending_bytes += stop - start
        self._by_buffer[-1].append(copy)


def _samples(plan: _Plan, leaves: Sequence[Leaf]) -> dict[str, str]:
    """Return, by name, samples of the weights that are read in place: all of it that a forward pass reaches.

    Training waits for them, since a sample of later bytes would prove nothing; whole digests would cost a stall.
    """
    chosen = [
        leaves[part.leaf]
        for parts in plan.parts
        for part in parts
        if isinstance(part, _InPlace) and not part.held and leaves[part.leaf].role == "weights"
    ]
    return {leaf.name: sample_of(leaf.array) for leaf in chosen}


def _parts(shard: Shard, places: dict[str, int], handling: Handling) -> Iterator[_CopiedLeaves | _InPlace]:
    group: list[LeafSpec] = []
    size_bytes = 0

    def copied() -> _CopiedLeaves:
        return _CopiedLeaves(group[0].dtype, tuple(places[leaf.name] for leaf in group), size_bytes)

    for spec in shard.leaves:
        in_place = _is_read_in_place(spec, handling)
        if group and (in_place or spec.dtype != group[0].dtype or size_bytes + spec.size_bytes > BUFFER_BYTES):
            yield copied()
            group, size_bytes = [], 0
        if in_place:
            held = spec.name in handling.settled and not handling.by_slices
            yield _InPlace(places[spec.name], spec.size_bytes, held)
        else:
            group.append(spec)
            size_bytes += spec.size_bytes
    if group:
        yield copied()


def _is_read_in_place(spec: LeafSpec, handling: Handling) -> bool:
    if spec.lifetime == "frozen" and spec.name in handling.settled:
        return True  # its digest is compared with what was written, even if it changes
    if handling.copy_all or spec.lifetime == "micro":
        return False
    # A frozen leaf that is not written yet is read twice, which slices do not allow.
    return spec.lifetime == "cycle" or not handling.by_slices
