"""Trains a stretch again in scratch roots and compares what it saves with the run's own checkpoints.

Guarantees: the run is read, and written by `certify` alone; everything else lies below the given folder. Several
checkpoints of the stretch are compared in one life, so the first that differs bounds where the difference came from. A
difference is followed by a second life: if the two lives agree with each other and not with the run, the script is
deterministic as it is now, and the run was trained by other code, data or versions, or the hardware computed wrongly.
In a job of many ranks the scratch root is that of all ranks, and what each of them stored is compared. The process, and
the trace that it writes, are those of the doctor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.checkpoint.receipts import post_certificate
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.layout import CheckpointName
from ckptkit.format.versions import changed
from ckptkit.manager.options import System
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.index import Lineage, Segment, Survey
from ckptkit.run.ownership import no_checkpoint
from ckptkit.run.resolve import LATEST, Candidates, choose, named, open_wanted
from ckptkit.storage import Storage, is_same_place, open_storage
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.diff import CheckpointDifference, Side, compare
from ckptkit.tools.doctor.lives.life_process import TrialLife, live
from ckptkit.tools.doctor.lives.trace import LifePlan
from ckptkit.tools.doctor.result import FailedLifeError, UnusableScriptError
from ckptkit.tools.watch import CheckpointWatch


@dataclass(frozen=True)
class Stretch:
    """Holds the checkpoints of a run between which it is trained again."""

    begin: OpenedCheckpoint
    ends: tuple[OpenedCheckpoint, ...]  # what is compared, in order; the last one ends the stretch


def stretch_of(storage: Storage, begin: str | None, end: str) -> Stretch:
    """Open the checkpoints from ``begin``, or from the one before ``end``, to ``end``, as users call them.

    The last one descends from the first, and none in between is left out: of one micro-step there may be several, such
    as one with metrics. Raises CheckpointNotFoundError if one of the two does not exist, ``end`` does not descend from
    ``begin``, or nothing comes before it; CorruptCheckpointError, which names a document that is missing or altered.
    """
    survey = Survey(storage)
    last = choose(survey, end, rewind=end != LATEST).first
    if last is None:
        raise no_checkpoint(storage)
    names = [*Candidates(survey, _back_from(survey, last))]  # newest first
    earlier = [name for name in names if _moment(name) < _moment(last)]
    if begin is None and not earlier:
        raise CheckpointNotFoundError(
            f"before {last}, its training has no checkpoint at {storage.url}: there is nothing to begin at. Keep more "
            "of them, as with keep=ckptkit.KeepLatest(5)"
        )
    first = earlier[0] if begin is None else named(survey, begin)
    if first not in earlier:
        listed = ", ".join(map(str, reversed(earlier[:5]))) or "none"
        raise CheckpointNotFoundError(f"{last} did not begin at {begin}; before it there are: {listed}")
    ends = [name for name in reversed(names) if _moment(name) > _moment(first)]
    return Stretch(open_wanted(storage, str(first)), tuple(open_wanted(storage, str(name)) for name in ends))


def _back_from(survey: Survey, last: CheckpointName) -> Iterable[Segment]:
    """Return the lineage of ``last``, without what was committed after it."""
    lineage = Lineage(survey, last.attempt).whole()
    if not lineage.segments:
        assert lineage.broken is not None  # noqa: S101 - otherwise it has the attempt's own segment
        raise lineage.broken
    return [Segment(last.attempt, last), *lineage.segments[1:]]


def _moment(name: CheckpointName) -> tuple[int, int]:
    return name.cycles, name.micro_step


@dataclass(frozen=True)
class ReplayVerdict:
    equal: tuple[str, ...]  # checkpoints of the run that the replay made again, bit for bit, in order
    differing: str | None = None  # the first that it did not; None if the stretch is certified
    difference: CheckpointDifference | None = None  # of the run's checkpoint and the replay's
    is_deterministic: bool | None = None  # whether a second replay agreed with the first; None if there was none
    versions: tuple[tuple[str, str, str], ...] = ()  # libraries that have changed: name, recorded and present version


@dataclass(frozen=True)
class StretchReplay:
    """Replays one stretch."""

    storage: Storage
    stretch: Stretch
    command: Sequence[str]  # the user's command, program first
    folder: Path  # an empty folder for everything that is written
    time_limit: timedelta
    monotonic: Callable[[], float]
    begins: Callable[[str, int], None]  # called with a description of the next life, and the number of its micro-steps
    stepped: Callable[[int], None]  # called now and then with the number of micro-steps that the running life has done

    def run(self) -> ReplayVerdict:
        """Replay once; twice if something differs.

        Raises UnusableScriptError if the script trains another run, or in another number of ranks; FailedLifeError if
        it failed, or did not get as far as the checkpoint; CkptKitError if a checkpoint cannot be read; and OSError if
        the folder cannot be written, or the command cannot be started.
        """
        first = self._lived(1)
        equal: list[str] = []
        for end in self.stretch.ends:
            made = _made_at(first, end)
            differences = [_compared(self.storage, end, first, checkpoint) for checkpoint in made]
            if any(difference.is_empty for difference in differences):
                equal.append(str(end.name))
                continue
            second = self._lived(2)
            repeated = _made_at(second, end)
            agrees = any(_compared(first, made[0], second, checkpoint).is_empty for checkpoint in repeated)
            versions = tuple(changed(end.manifest.libraries))
            return ReplayVerdict(tuple(equal), str(end.name), differences[0], agrees, versions)
        return ReplayVerdict(tuple(equal))

    def _lived(self, number: int) -> Storage:
        """Train the stretch once more; return the scratch root, with a checkpoint at each end."""
        begin, steps = _steps(self.stretch.begin), sorted({_steps(end) for end in self.stretch.ends})
        root = self.folder / f"run-{number}"
        scratch = open_storage(root)
        alone = str(self.stretch.begin.name)
        system = System()
        request = CopyRequest(alone, system.clock, system.new_token)
        copy_run(self.storage, scratch, request, CheckpointWatch())
        self.begins(f"from {begin} to {steps[-1]}", steps[-1] - begin)
        name = f"replay-{number}"
        plan = LifePlan(
            root=str(self.folder),
            run=str(root),
            trace=str(self.folder / f"{name}.trace"),
            stop=steps[-1],
            saves=tuple(steps),
        )
        limit, clock = self.time_limit, self.monotonic
        life = live(self.command, name, plan, time_limit=limit, monotonic=clock, on_step=self.stepped)
        self._check(life, steps[-1])
        return scratch

    def _check(self, life: TrialLife, last: int) -> None:
        """Refuse a life that did not train the stretch."""
        if life.refused is not None:
            raise UnusableScriptError(f"the script cannot be replayed: {life.refused}")
        if life.begun is not None and not is_same_place(life.begun.url, self.storage.url):
            raise UnusableScriptError(
                f"the script trains the run at {life.begun.url}, and not the one at {self.storage.url}. Give that root"
            )
        ranks, its = self.stretch.begin.manifest.world_size, len(life.each_rank)
        if life.begun is not None and its != ranks:
            raise UnusableScriptError(
                f"{self.stretch.begin.name} is of a job of {ranks} ranks, and this command trains {its}. Start it as "
                "the run was trained, with the launcher and its number of ranks after the two dashes"
            )
        done = min(rank.last_step for rank in life.each_rank)
        if life.begun is None or done < last or not life.ended_as_planned:
            how = "reached its time limit" if life.exit_code is None else f"ended with exit code {life.exit_code}"
            raise FailedLifeError(f"{life.name} {how} after {done} of {last} micro-steps", life)


def certify(storage: Storage, stretch: Stretch, verdict: ReplayVerdict) -> list[str]:
    """Store beside each checkpoint that was made again where the stretch began; return their names.

    A job may remove checkpoints meanwhile: those get nothing, and are left out.
    """
    recorded = []
    for end in stretch.ends:
        if str(end.name) in verdict.equal:
            with contextlib.suppress(CheckpointNotFoundError):
                post_certificate(storage, end.name, stretch.begin.name)
                recorded.append(str(end.name))
    return recorded


def _made_at(storage: Storage, end: OpenedCheckpoint) -> list[OpenedCheckpoint]:
    """Open what a replay saved after as many micro-steps as ``end``: at the step, and by the script's own saves."""
    made = [
        open_wanted(storage, info.name)
        for info in list_checkpoints(storage)
        if info.progress is not None and info.progress.batches_delivered == _steps(end)
    ]
    if not made:
        raise UnusableScriptError(
            f"the replay could not save after {_steps(end)} micro-steps, where {end.name} was taken: the script calls "
            "neither manager.step() nor manager.save() there"
        )
    return made


def _compared(
    a: Storage, checkpoint_a: OpenedCheckpoint, b: Storage, checkpoint_b: OpenedCheckpoint
) -> CheckpointDifference:
    return compare(Side(a, checkpoint_a, lambda _: None), Side(b, checkpoint_b, lambda _: None), lambda _: None)


def _steps(checkpoint: OpenedCheckpoint) -> int:
    return checkpoint.manifest.progress.batches_delivered
