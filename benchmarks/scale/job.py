"""A job of many ranks over a simulated object store: the real code of saves and starts, one rank after the other.

In a save the ranks above 0 do not depend on rank 0, so each runs by itself, on its own clock from the moment at which
all agreed to save; rank 0 runs last and sees each receipt from the moment on at which it was written.
"""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np

from ckptkit.checkpoint.receipts import Receipts
from ckptkit.checkpoint.write import SaveRequest
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import Leaf, leaf_of
from ckptkit.core.waiting import Patience
from ckptkit.format.layout import CheckpointName
from ckptkit.format.shards import Shard, plan_shards
from ckptkit.run.attempt import Opened, Opening, follow, lead, open_attempt
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.run.retention import Retention, sweep
from ckptkit.run.saver import PartSaver, Saver
from ckptkit.snapshot.partition import partition

from .network import Line, Network, Request
from .storage import Objects, storage_over

PATIENCE = timedelta(minutes=10)
KEPT = 2
_BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def progress_at(cycles: int) -> Progress:
    return Progress(
        epoch=0,
        batch=4 * cycles,
        cycles=cycles,
        updates=cycles,
        micro_step=0,
        accumulation_steps=4,
        batches_delivered=4 * cycles,
        cycle_first_batch=4 * cycles,
    )


def leaves_of(ranks: int) -> list[Leaf]:
    """One tiny leaf of each kind; of the first two, a rank stores a piece of one."""
    weights = np.zeros((8 * ranks, 2), np.float32)
    return [
        leaf_of("weight", weights, role="weights", placement="replicated"),
        leaf_of("moment", weights, role="optimizer", placement="replicated"),
        leaf_of("sum", np.zeros(4, np.float32), role="accumulators"),
        leaf_of("generator", np.zeros(2, np.uint64), role="state"),
    ]


@functools.lru_cache(2)
def shards_of(ranks: int) -> tuple[tuple[Shard, ...], ...]:
    """What each rank writes."""
    specs = [leaf.spec for leaf in leaves_of(ranks)]
    return tuple(
        tuple(plan_shards([part.spec for part in partition(specs, rank, ranks)], rank=rank, ranks=ranks))
        for rank in range(ranks)
    )


@dataclass
class TinyCapture:
    """`ckptkit.checkpoint.write.Staged` over zeros."""

    progress: Progress
    shards: tuple[Shard, ...]
    state: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, str] = field(default_factory=dict)
    cost: SaveCost = field(default_factory=SaveCost)
    by_slices: bool = False

    def open_shard(self, number: int, *, last: bool = True) -> io.BytesIO:
        shard = self.shards[number]
        return io.BytesIO(shard.header + bytes(shard.size_bytes - len(shard.header)))

    def release(self) -> None:
        pass

    def advance(self, micro_steps_left: int) -> None:
        pass


class TinyState:
    """What is restored: reads all that it is given."""

    def __init__(self) -> None:
        self.contents: Contents | None = None

    def apply(self, contents: Contents) -> None:
        self.contents = contents
        assert contents.tensors

    def begin(self, root: str) -> None:
        pass

    def progress(self) -> Progress:
        return self.contents.progress if self.contents else progress_at(0)


@dataclass
class Leading:
    """The world of rank 0, when all others fare as it does; keeps what it said."""

    size: int
    said: list[str] = field(default_factory=list)
    rank: int = 0

    def gather(self, message: str) -> Sequence[str]:
        self.said.append(message)
        return [message] * self.size

    def broadcast(self, message: str) -> str:
        return self.gather(message)[0]


@dataclass
class Following:
    """The world of another rank, in which rank 0 says what it said."""

    rank: int
    size: int
    said: list[str]
    heard: int = 0

    def gather(self, message: str) -> Sequence[str]:
        self.heard += 1
        return [self.said[self.heard - 1]] * self.size

    def broadcast(self, message: str) -> str:
        return self.gather(message)[0]


@dataclass(frozen=True)
class Measured:
    """What something cost one rank.

    Attributes:
        requests: Each of them.
        seconds: On the virtual clock.
    """

    requests: Sequence[Request]
    seconds: float

    @property
    def kinds(self) -> Counter[str]:
        """Requests by kind, each counted once."""
        return Counter(one.kind for one in self.requests)

    @property
    def sent(self) -> int:
        """With the repetitions."""
        return sum(one.tries for one in self.requests)


@dataclass(frozen=True)
class Commit:
    """A save of all ranks.

    Attributes:
        name: Of the checkpoint.
        leader: Rank 0's, up to COMMIT.
        others: Those of the ranks above.
        after: Rank 0's after COMMIT, which is retention.
    """

    name: CheckpointName
    leader: Measured
    others: Sequence[Measured]
    after: Measured


class Job:
    """A job of ``ranks``.

    Args:
        ranks: How many.
        seed: Of the network.
    """

    def __init__(self, ranks: int, seed: int = 0) -> None:
        self.ranks = ranks
        self.network = Network(seed)
        self.objects = Objects(self.network)
        self.storage = storage_over(self.objects)
        self._token = 0
        self._cycles = 0
        self.restart()

    def measure(self, act: Callable[[], Any]) -> Measured:
        """What ``act`` costs a rank, from the job's present on."""
        line = Line(self.network.line.now)
        begun = line.now
        self.network.become(line)
        act()
        return Measured(line.requests, self.network.now() - begun)

    def start(self, said: list[str] | None = None) -> Opened:
        """Rank 0's start; ``said`` gets what it tells the others."""
        opening = Opening("latest", False, "simulated", lambda: _BEGAN, self._new_token)
        world = Leading(self.ranks, [] if said is None else said)
        return lead(world, [self.storage], TinyState(), lambda leader: open_attempt(self.storage, opening, leader))

    def restart(self, said: list[str] | None = None) -> None:
        """Rank 0's start, after which the job belongs to another attempt."""
        self.opened = self.start(said)
        self._begin()

    def follow(self, rank: int, said: list[str]) -> Opened:
        """The start of another rank."""
        return follow(Following(rank, self.ranks, said), [self.storage], TinyState())

    def sweep(self) -> list[CheckpointName]:
        """Clear away what dead attempts left."""
        return sweep(self.storage, self.opened.document, has_mirror=False)

    def save(self, parts_take: Callable[[int], float] = lambda rank: 0.0) -> Commit:
        """Save in all ranks, of which each sends bytes for so many seconds beside what its requests take."""
        self._cycles += 1
        name = self._saver.next_name(progress_at(self._cycles))
        others = [self.measure_from(self.network.now(), rank, name, parts_take(rank)) for rank in range(1, self.ranks)]
        return self._lead(name, others)

    def leave_a_part(self) -> None:
        """Save in all ranks but rank 0, which died."""
        self._cycles += 1
        name = self._saver.next_name(progress_at(self._cycles))
        for rank in range(1, self.ranks):
            self.measure_from(self.network.now(), rank, name, 0.0)

    def measure_from(self, begun: float, rank: int, name: CheckpointName, takes: float) -> Measured:
        """The part of one rank above 0; the job's present stays what it was."""
        part = PartSaver(self.storage, self.opened.document, rank)

        def act() -> None:
            self.network.wait(takes)
            part.save(self._request(name, rank))

        measured = self.measure(act)
        self.network.become(Line(begun))
        return measured

    def again(self, commit: Commit, seed: int) -> Commit:
        """The same save with other latencies: the ranks above 0 make the same requests, and rank 0 runs anew."""
        self.network.reseed(seed)
        folder = commit.name.folder
        for one in commit.leader.requests:
            if one.kind == "put" and one.key.startswith(f"{folder}/"):
                self.objects.remove(one.key)
        begun = self.network.now()
        others = [self._redrawn(begun, one.requests) for one in commit.others]
        self._begin()
        return self._lead(commit.name, others)

    def _redrawn(self, begun: float, requests: Sequence[Request]) -> Measured:
        line = Line(begun)
        self.network.become(line)
        for one in requests:
            span = self.network.send(one.kind, one.key)
            if one.kind == "put":
                self.objects.put(one.key, self.objects.objects[one.key].data, span.answered)
        self.network.become(Line(begun))
        return Measured(line.requests, line.now - begun)

    def _begin(self) -> None:
        document = self.opened.document
        receipts = (
            Receipts(self.storage, self.ranks, Patience(PATIENCE), monotonic=self.network.now, pause=self.network.wait)
            if self.ranks > 1
            else None
        )
        retention = Retention(self.storage, document, KeepLatest(KEPT))
        self._saver = Saver(self.storage, document, self.opened.run_id, retention, receipts)

    def _lead(self, name: CheckpointName, others: Sequence[Measured]) -> Commit:
        begun = self.network.now()
        whole = self.measure(lambda: self._saver.save(self._request(name, 0)))
        put = [one.key for one in whole.requests].index(name.commit_key)
        since = self.objects.objects[name.commit_key].since
        leader = Measured(whole.requests[: put + 1], since - begun)
        return Commit(name, leader, others, Measured(whole.requests[put + 1 :], whole.seconds - leader.seconds))

    def _request(self, name: CheckpointName, rank: int) -> SaveRequest:
        staged = TinyCapture(progress_at(name.cycles), shards_of(self.ranks)[rank])
        return SaveRequest(name, staged, {}, _BEGAN, name.cycles)

    def _new_token(self) -> str:
        self._token += 1
        return f"{self._token:032x}"
