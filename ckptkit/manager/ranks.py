"""Agrees across ranks on the micro-step to save; either all ranks save it or none does.

Every rank reaches the same conclusion, because each draws it from the same messages. A rank that must stop stops all
others with the same error. Ranks at different micro-steps or with different models are found before anything is
written. A message costs one gather: one per due save, and one per boundary where the schedule uses a clock. Training
thread only, in all ranks at the same points.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ckptkit.core.placement import Box, fault_of_cut, tag_of
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import SavePolicy, due_from
from ckptkit.core.tensors import Leaf, LeafSpec, bytes_of
from ckptkit.errors import ResumeError
from ckptkit.format.documents import canonical, digest_of
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.run.rank_protocol import RankFailure

_NO_TIME = timedelta(0)


class RankStatus(BaseModel):
    """Holds what one rank reports before a save."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    progress: Progress | None = None  # None only together with `end`
    model: str = ""  # digest of the specs of its replicated and sharded leaves, in order
    cuts: str = ""  # digest of the boxes of its sharded leaves; empty if it has none
    replicas: str | None = None  # digest of the bits of its replicated leaves, if they are compared
    thawed: bool = False  # a leaf declared frozen has changed in this rank; other ranks may have a different change
    busy: bool = False  # its part of the last save is still being written
    lost: tuple[int, str] | None = None  # number of a save whose part this rank could not write, and the reason
    end: RankFailure | None = None  # why the rank must stop
    number: int = 0  # of the save that would begin now
    name: str = ""  # that rank 0 would give the save
    committed: str | None = None  # rank 0's commit at this progress
    newest: str | None = None  # rank 0's last commit
    interval: int | None = None  # cycles until the next save of `SaveEvery.auto`, as this rank measures it
    free: list[bool] = []  # for each mirror, whether this rank would upload a commit to it at once


class RankSync:
    """Exchanges messages between the ranks of a job for a manager."""

    def __init__(self, world: World, schedule: SavePolicy) -> None:
        self._world = world
        self._schedule = schedule
        self._specs: tuple[LeafSpec, ...] = ()
        self._model = ""
        self._cuts = ""
        self._whole: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        return self._world.rank

    @property
    def size(self) -> int:
        return self._world.size

    @property
    def is_alone(self) -> bool:
        return self._world.size == 1

    @property
    def leads(self) -> bool:
        return self._world.rank == 0

    def is_due(self, progress: Progress, since: timedelta) -> bool:
        """Return whether all ranks agree that a save is due.

        A schedule that counts steps gives the same answer in every rank and needs no message. Where it reads a
        clock, rank 0 decides, at boundaries only.
        """
        if self.is_alone:
            return self._schedule.due(progress, since)
        if self._schedule.due(progress, _NO_TIME):
            return True
        if not getattr(self._schedule, "by_clock", True) or not progress.at_boundary:
            return False
        return self.flags(self._schedule.due(progress, since))[0]

    def due_from(self, cycle: int) -> None:
        """Let `SaveEvery.auto` be due from that cycle on; every rank must give the same one."""
        self._schedule = due_from(self._schedule, cycle)

    def flags(self, mine: bool) -> list[bool]:
        """Return each rank's yes or no, by rank."""
        return [word == "yes" for word in self.say("yes" if mine else "no")]

    def say(self, text: str) -> Sequence[str]:
        """Return each rank's text, by rank; every rank must call this at the same point."""
        with HEARTBEAT.meeting():
            return self._world.gather(text)

    def words(self, mine: RankStatus, own_end: BaseException | None) -> list[RankStatus]:
        """Exchange statuses and return them by rank; raise the error for which a rank must stop, own or not."""
        said = [RankStatus.model_validate_json(text) for text in self.say(mine.model_dump_json())]
        if own_end is not None:
            raise own_end
        for rank, word in enumerate(said):
            if word.end is not None:
                raise word.end.error(rank)
        for rank, word in enumerate(said):
            if word.progress != said[0].progress or word.number != said[0].number:
                raise ResumeError(
                    "the ranks are no longer in step, so no checkpoint can hold them all. Rank 0: "
                    f"{said[0].progress}, save {said[0].number}. Rank {rank}: {word.progress}, save {word.number}. "
                    "Every rank has to make the same number of micro-steps with the same K. No checkpoint was changed"
                )
            if word.model != said[0].model:
                raise ResumeError(
                    f"rank {rank} trains another model than rank 0: the order, names, dtypes, shapes or placements of "
                    "the parameters that ranks share differ, or which of them are frozen. Start every rank with the "
                    "same script. No checkpoint was changed"
                )
        return said

    def replicas_of(self, leaves: Sequence[Leaf]) -> str | None:
        """Return the digest of the bits of all replicated leaves, which reads all of them; None in one rank."""
        if self.is_alone:
            return None
        return digest_of(canonical({leaf.name: _digest(leaf) for leaf in _replicated(leaves)}))

    def refuse_different_replicas(self, said: Sequence[RankStatus], leaves: Sequence[Leaf]) -> None:
        """Raise ResumeError if replicated leaves differ between ranks; a collective."""
        if self.is_alone or (said[0].replicas is not None and all(word.replicas == said[0].replicas for word in said)):
            return
        mine = {leaf.name: _digest(leaf) for leaf in _replicated(leaves)}
        theirs: list[dict[str, str]] = [json.loads(text) for text in self.say(json.dumps(mine))]
        different = {
            name: [rank for rank, digests in enumerate(theirs) if digests.get(name) != theirs[0].get(name)]
            for name in sorted(theirs[0])
        }
        shown = [f"{name} in ranks {ranks[:8]}" for name, ranks in different.items() if ranks]
        if not shown:
            return
        raise ResumeError(
            "these leaves must be the same in every rank, but differ from rank 0's: "
            + "; ".join(shown[:20])
            + ". Initialise every rank alike (ms.set_seed before the network is built), let only the update change "
            "them, or give them their own placement (Ranks(placement=...))"
        )

    def refuse_incomplete_cuts(self, said: Sequence[RankStatus], leaves: Sequence[Leaf]) -> None:
        """Raise ResumeError unless the parts of each sharded leaf make it up; a collective if the cuts are new."""
        cuts = tuple(word.cuts for word in said)
        if cuts == self._whole or not any(cuts):
            return
        mine = {leaf.name: _box(leaf.spec) for leaf in leaves if isinstance(leaf.spec.placement, Box)}
        theirs = [_BOXES.validate_json(text) for text in self.say(_BOXES.dump_json(mine).decode())]
        alike: list[list[_BoxOf]] = []  # most leaves are cut in one of a few ways
        for name in sorted(theirs[0]):  # every rank has all names, or `words` would have raised
            boxes = [of_rank[name] for of_rank in theirs]
            if boxes in alike:
                continue
            alike.append(boxes)
            wrong = fault_of_cut(boxes[0].whole, [(box.offsets, box.shape) for box in boxes if not box.replica])
            if wrong:
                raise ResumeError(
                    f"the placements of {name} over the {self.size} ranks {wrong}, so it could not be reassembled: "
                    "of the ranks that hold a part, exactly one must give it with replica=0, and the parts must "
                    f"make up {list(boxes[0].whole)}. No checkpoint was changed"
                )
        self._whole = cuts

    def cuts_of(self, leaves: Sequence[Leaf]) -> str:
        """Return the digest of the sharded leaves' boxes; empty if there are none."""
        self.model_of(leaves)
        return self._cuts

    def model_of(self, leaves: Sequence[Leaf]) -> str:
        """Return the digest of the leaf properties on which all ranks must agree; empty in one rank."""
        if self.is_alone:
            return ""
        specs = tuple(leaf.spec for leaf in leaves)
        if specs != self._specs or not self._model:  # saves pass the same objects, so the comparison is quick
            self._specs = specs
            # The order and what is frozen decide which rank stores which part of a replicated leaf.
            shared = [_as_a_whole(spec) for spec in specs if spec.placement != "per_rank"]
            self._model = digest_of(canonical(shared))
            boxes = [(spec.name, _box(spec)) for spec in specs if isinstance(spec.placement, Box)]
            cuts = [[name, *box.model_dump().values()] for name, box in boxes]
            self._cuts = digest_of(canonical(cuts)) if cuts else ""
        return self._model


class _BoxOf(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    whole: list[int]
    offsets: list[int]
    shape: list[int]
    replica: int


_BOXES = TypeAdapter(dict[str, _BoxOf])


def _box(spec: LeafSpec) -> _BoxOf:
    box = spec.placement
    assert isinstance(box, Box)  # noqa: S101 - callers pass sharded leaves only
    return _BoxOf(whole=list(box.global_shape), offsets=list(box.offsets), shape=list(spec.shape), replica=box.replica)


def _replicated(leaves: Sequence[Leaf]) -> list[Leaf]:
    return [leaf for leaf in leaves if leaf.spec.placement == "replicated"]


def _digest(leaf: Leaf) -> str:
    return digest_of(bytes_of(leaf.array).data)


def _as_a_whole(spec: LeafSpec) -> list[object]:
    """Return the properties by which ranks share the work; if they differed, some bytes would be stored nowhere."""
    shape = spec.placement.global_shape if isinstance(spec.placement, Box) else spec.shape
    return [spec.name, spec.role, spec.dtype, list(shape), tag_of(spec.placement), spec.lifetime == "frozen"]
