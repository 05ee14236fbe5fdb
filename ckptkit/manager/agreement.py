"""Agrees across ranks on the micro-step to save; either all ranks save it or none does.

Every rank reaches the same conclusion, because each draws it from the same messages. A rank that must stop stops all
others with the same error. Ranks at different micro-steps or with different models are found before anything is
written. A message costs one gather: one per due save, one per boundary where the schedule uses a clock, and about one
a second where signals are watched. Training thread only, in all ranks at the same points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from ckptkit.core.placement import Box, fault_of_cut, tag_of
from ckptkit.core.process_group import World
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import Leaf, LeafSpec, digests_of
from ckptkit.errors import ResumeError
from ckptkit.format.documents import StrictModel, canonical, digest_of
from ckptkit.manager.heartbeat import HEARTBEAT
from ckptkit.run.attempt import RankFailure

Message = TypeVar("Message", bound=StrictModel)


class RankStatus(StrictModel):
    """Holds what one rank reports before a save, and of the outcome of the final one, which only rank 0 knows."""

    progress: Progress | None = None  # None together with `end`, and after the final save
    model: str = ""  # digest of the specs of its replicated and sharded leaves, in order
    cuts: str = ""  # digest of the boxes of its sharded leaves; empty if it has none
    replicas: str | None = None  # digest of the bits of its replicated leaves, if they are compared
    thawed: bool = False  # a leaf declared frozen has changed in this rank; other ranks may have a different change
    busy: bool = False  # its part of the last save is still being written
    late: bool = False  # and the time in which it may be is over
    lost: tuple[int, str] | None = None  # number of a save whose part this rank could not write, and the reason
    end: RankFailure | None = None  # why the rank must stop
    number: int = 0  # of the save that would begin now
    name: str = ""  # that rank 0 would give the save
    committed: str | None = None  # rank 0's commit at this progress
    failure: str = ""  # of the final save
    newest: str | None = None  # rank 0's last commit
    interval: int | None = None  # cycles until the next save of `SaveEvery.auto`, as this rank measures it
    free: tuple[bool, ...] = ()  # for each mirror, whether this rank would upload a commit to it at once


class RankSync:
    """Exchanges messages between the ranks of a job for a manager."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rank, self.size = world.rank, world.size
        self.is_alone, self.leads = world.size == 1, world.rank == 0
        self._specs: tuple[LeafSpec, ...] = ()
        self._model = ""
        self._cuts = ""
        self._whole: tuple[str, ...] = ()

    def flags(self, mine: bool) -> list[bool]:
        return [status == "yes" for status in self.gather("yes" if mine else "no")]

    def gather(self, text: str) -> Sequence[str]:
        """Return each rank's text, by rank; every rank must call this at the same point."""
        with HEARTBEAT.meeting():
            return self._world.gather(text)

    def exchange(self, mine: Message) -> list[Message]:
        """Return each rank's message, by rank; as `gather`."""
        return [type(mine).model_validate_json(text) for text in self.gather(mine.model_dump_json())]

    def exchange_statuses(self, mine: RankStatus, own_end: BaseException | None) -> list[RankStatus]:
        """Exchange statuses and return them by rank; raise the error for which a rank must stop, own or not."""
        statuses = self.exchange(mine)
        if own_end is not None:
            raise own_end
        for rank, status in enumerate(statuses):
            if status.end is not None:
                raise status.end.error(rank)
        first = statuses[0]
        for rank, status in enumerate(statuses):
            if status.progress != first.progress or status.number != first.number:
                raise ResumeError(
                    "the ranks are no longer in step, so no checkpoint can hold them all. Rank 0: "
                    f"{first.progress}, save {first.number}. Rank {rank}: {status.progress}, save {status.number}. "
                    "Every rank has to make the same number of micro-steps with the same K. No checkpoint was changed"
                )
            if status.model != first.model:
                raise ResumeError(
                    f"rank {rank} trains another model than rank 0: the order, names, dtypes, shapes or placements of "
                    "the parameters that ranks share differ, or which of them are frozen. Start every rank with the "
                    "same script. No checkpoint was changed"
                )
        return statuses

    def replicas_of(self, leaves: Sequence[Leaf]) -> str | None:
        """Return the digest of the bits of all replicated leaves, which reads all of them; None in one rank."""
        return None if self.is_alone else digest_of(canonical(_replica_digests(leaves)))

    def refuse_different_replicas(self, statuses: Sequence[RankStatus], leaves: Sequence[Leaf]) -> None:
        """Raise ResumeError if replicated leaves differ between ranks; a collective."""
        digests = {status.replicas for status in statuses}
        if self.is_alone or (len(digests) == 1 and None not in digests):
            return
        theirs: list[dict[str, str]] = [json.loads(text) for text in self.gather(json.dumps(_replica_digests(leaves)))]
        different = {
            name: [rank for rank, digests in enumerate(theirs) if digests.get(name) != theirs[0].get(name)]
            for name in sorted(theirs[0])
        }
        shown = [f"{name} in ranks {ranks[:8]}" for name, ranks in different.items() if ranks]
        if shown:
            raise ResumeError(
                f"these leaves must be the same in every rank, but differ from rank 0's: {'; '.join(shown[:20])}. "
                "Initialise every rank alike (ms.set_seed before the network is built), let only the update change "
                "them, or give them their own placement (Ranks(placement=...))"
            )

    def refuse_incomplete_cuts(self, statuses: Sequence[RankStatus], leaves: Sequence[Leaf]) -> None:
        """Raise ResumeError unless the parts of each sharded leaf make it up; a collective if the cuts are new."""
        cuts = tuple(status.cuts for status in statuses)
        if cuts == self._whole or not any(cuts):
            return
        theirs: list[_Boxes] = [
            json.loads(text) for text in self.gather(json.dumps(_boxes(leaf.spec for leaf in leaves)))
        ]
        alike: list[list[_BoxOf]] = []  # most leaves are cut in one of a few ways
        for name in sorted(theirs[0]):  # every rank has all names, or `exchange_statuses` would have raised
            boxes = [of_rank[name] for of_rank in theirs]
            if boxes in alike:
                continue
            alike.append(boxes)
            whole = boxes[0][0]
            wrong = fault_of_cut(whole, [(offsets, shape) for _, offsets, shape, replica in boxes if replica == [0]])
            if wrong:
                raise ResumeError(
                    f"the placements of {name} over the {self.size} ranks {wrong}, so it could not be reassembled: "
                    "of the ranks that hold a part, exactly one must give it with replica=0, and the parts must "
                    f"make up {whole}. No checkpoint was changed"
                )
        self._whole = cuts

    def model_of(self, leaves: Sequence[Leaf]) -> tuple[str, str]:
        """Return the digest of the leaf properties on which ranks must agree, and that of the sharded leaves' boxes.

        They are empty in one rank, and the second one without sharded leaves.
        """
        if self.is_alone:
            return "", ""
        specs = tuple(leaf.spec for leaf in leaves)
        if specs != self._specs or not self._model:  # saves pass the same objects, so the comparison is quick
            self._specs = specs
            # The order and what is frozen decide which rank stores which part of a replicated leaf.
            shared = [_as_a_whole(spec) for spec in specs if spec.placement != "per_rank"]
            self._model = digest_of(canonical(shared))
            boxes = _boxes(specs)
            self._cuts = digest_of(canonical(boxes)) if boxes else ""
        return self._model, self._cuts


_BoxOf: TypeAlias = Sequence[Sequence[int]]  # the shape of the whole, the offsets, the shape, the replica
_Boxes: TypeAlias = Mapping[str, _BoxOf]


def _boxes(specs: Iterable[LeafSpec]) -> _Boxes:
    return {
        spec.name: [[*box.global_shape], [*box.offsets], [*spec.shape], [box.replica]]
        for spec in specs
        if isinstance(box := spec.placement, Box)
    }


def _replica_digests(leaves: Sequence[Leaf]) -> dict[str, str]:
    return digests_of([leaf for leaf in leaves if leaf.spec.placement == "replicated"])


def _as_a_whole(spec: LeafSpec) -> list[object]:
    """Return the properties by which ranks share the work; if they differed, some bytes would be stored nowhere."""
    shape = spec.placement.global_shape if isinstance(spec.placement, Box) else spec.shape
    return [spec.name, spec.role, spec.dtype, list(shape), tag_of(spec.placement), spec.lifetime == "frozen"]
