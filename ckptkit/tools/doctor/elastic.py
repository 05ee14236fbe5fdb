"""Continues a job on another number of ranks, and examines what an elastic resume promises.

One life on the old number saves at a boundary and in mid-cycle, and is killed. From each of these checkpoints alone, a
life on the other number begins, and is compared by `ckptkit.tools.doctor.promises`. From the last one, the job is begun
once more, killed and resumed on the other number, and compared bit for bit with the life that was not interrupted.
Guarantees: stops at the first difference; a change that the library refuses is reported, and none of the others is left
out. Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ckptkit.errors import ResumeError
from ckptkit.manager.options import System
from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.copy.inventory import Unwatched
from ckptkit.tools.doctor.compare import Difference, other_losses
from ckptkit.tools.doctor.diagnose import Diagnosis, diagnose_resume
from ckptkit.tools.doctor.lives.trace import scratch_run
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.plan import Death, Part, plan_changes, victims
from ckptkit.tools.doctor.promises import (
    Change,
    Continuation,
    Starts,
    begun_anew,
    converted,
    cut_leaves,
    dealt_after,
    unkept_by_end,
    unkept_by_restore,
)
from ckptkit.tools.doctor.report import FailedLifeError, UnusableScriptError, failure_of, rank_in_words, ranks_in_words

_SAVER = "root-6"


class Elastic:
    """Examines one other number of ranks.

    Args:
        command: Starts the job on it.
        folder: Where the lives have their roots.
        first: The uninterrupted life of the job.
        last: The micro-step up to which it is compared.
        live: Runs a life.
        difference: Compares a life with another one up to a micro-step; raises `FailedLifeError`.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        folder: Path,
        first: Life,
        last: int,
        *,
        live: Callable[[Part], Life],
        difference: Callable[[Life, Life, int], Difference | None],
    ) -> None:
        self._command = command
        self._folder = folder
        self._first = first
        self._last = last
        self._live = live
        self._difference = difference
        self._ranks = len(first.each_rank)
        self._fresh = first  # the other job begun afresh, and where it takes over: known after `begin`
        self._places: list[int] = []

    def begin(self) -> None:
        """Start the job on the other number once, to learn which it is, and choose the places of the changes.

        Raises:
            UnusableScriptError: If it is no other number, or no place can be converted to it.
            FailedLifeError: If the life failed by itself.
            OSError: If the folder cannot be written, or the command cannot be started.
        """
        fresh = self._live(
            Part("on the other number of ranks, afresh", "root-7", 1, command=self._command, changes_ranks=True)
        )
        if fresh.refused is not None:
            raise UnusableScriptError(f"the command of --then cannot be examined: {fresh.refused}")
        if fresh.begun is None or not fresh.ended_as_planned or 1 not in fresh.steps:
            raise FailedLifeError(f"{failure_of(fresh)}. It was the command of --then, at its first start", fresh)
        onto = len(fresh.each_rank)
        if onto == self._ranks:
            raise UnusableScriptError(
                f"both commands start {ranks_in_words(onto)}. Give --then a command that starts another number of them"
            )
        self._fresh, self._places = fresh, self._chosen(onto)

    def run(self, shaky: Sequence[frozenset[str]]) -> Continuation:
        """Change the number of ranks at each place, then kill and resume the job on the other number.

        Args:
            shaky: `compare.unstable` of each rank of the first life.

        Raises:
            UnusableScriptError: If the command starts another number of ranks than before.
            FailedLifeError: If a life failed by itself.
            OSError: As in `begin`.
        """
        until = max(self._places)
        words = f"save after {' and '.join(map(str, sorted(self._places)))}, SIGKILL"
        death = Death(until, until)
        saver = self._live(Part(words, _SAVER, self._last, death, saves=tuple(self._places), changes_ranks=True))
        found = Continuation(len(self._fresh.each_rank), compared=until * self._ranks)
        differs = self._difference(saver, self._first, until)
        if differs is not None:
            return replace(found, difference=differs, diagnosis=diagnose_resume(differs, shaky[differs.rank or 0]))
        kept: tuple[Life, int] | None = None
        for after in self._places:
            root = f"elastic-{after}"
            self._copy(saver, after, root)
            life = self._on_other_ranks(
                f"from {after} on, to the end", Part("", root, self._end, begun=self._at(after))
            )
            found = self._changed(found, life, saver, after)
            if found.difference is not None:
                return found
            kept = kept if life.begun is None else (life, after)
        if kept is None:
            return replace(found, diagnosis=self._refusal(found.changes[0]))
        return self._interrupted(found, saver, *kept, frozenset().union(*shaky))

    @property
    def _end(self) -> int:
        return self._last * self._ranks // len(self._fresh.each_rank)

    def _at(self, after: int) -> int:
        """Return a micro-step of the old job in those of the new one."""
        return after * self._ranks // len(self._fresh.each_rank)

    def _chosen(self, onto: int) -> list[int]:
        steps = [self._first.steps[step].progress for step in range(1, self._last + 1)]
        try:
            places = plan_changes(steps, self._ranks, onto)
        except ResumeError as error:
            raise UnusableScriptError(f"--then starts {ranks_in_words(onto)}: {error}") from error
        if not places:
            raise UnusableScriptError(
                f"within {self._last} micro-steps, no update ends that another one follows, so the change to "
                f"{ranks_in_words(onto)} cannot be examined. Give more --steps"
            )
        return places

    def _on_other_ranks(self, words: str, part: Part) -> Life:
        words = f"on {ranks_in_words(len(self._fresh.each_rank))} {words}"
        life = self._live(replace(part, words=words, command=self._command, changes_ranks=True))
        if life.begun is not None and len(life.each_rank) != len(self._fresh.each_rank):
            raise UnusableScriptError(
                f"the command of --then started {ranks_in_words(len(self._fresh.each_rank))} first and "
                f"{len(life.each_rank)} in {life.name}; start it with the same number each time"
            )
        return life

    def _copy(self, saver: Life, after: int, root: str) -> None:
        """Make a run below ``root`` that has the checkpoint after that micro-step, and no other."""
        assert saver.begun is not None  # noqa: S101 - it has been compared
        source = open_storage(scratch_run(self._folder / _SAVER, saver.begun.url))
        target = open_storage(scratch_run(self._folder / root, saver.begun.url))
        found = [one for one in list_checkpoints(source) if one.progress is not None]
        name = next(one.name for one in found if one.progress and one.progress.batches_delivered == after)
        system = System()
        copy_run(source, target, CopyRequest(name, system.clock, system.new_token), Unwatched())

    def _changed(self, found: Continuation, life: Life, saver: Life, after: int) -> Continuation:
        """Return ``found`` with what is to be said about one change."""
        begun_at, inside = self._at(after), not self._first.steps[after].progress.at_boundary
        if life.begun is None:
            if life.unrestored is None:
                raise FailedLifeError(f"{failure_of(life)}. It was the command of --then", life)
            change = Change(after, begun_at, inside, refused=life.unrestored)
            return replace(found, changes=(*found.changes, change))
        found = replace(found, changes=(*found.changes, Change(after, begun_at, inside)))
        starts = Starts(self._first, self._fresh)
        unkept = unkept_by_restore(life, saver, after, starts)
        if unkept is None:
            dealt = dealt_after(life, self._first, after)
            anew = begun_anew(life, self._fresh, saver, after)
            found = replace(
                found,
                updates=found.updates + dealt.updates,
                micro_batches=found.micro_batches + dealt.micro_batches,
                converted=tuple(dict.fromkeys((*found.converted, *converted(life, saver, after, starts)))),
                cut=tuple(cut_leaves(life)),
                notes=tuple(dict.fromkeys((*found.notes, *(f"{rank_in_words(rank)}{path}" for rank, path in anew)))),
            )
            unkept = dealt.unkept
        if unkept is None:
            if not life.ended_as_planned:
                raise FailedLifeError(f"{failure_of(life)}. It was the command of --then", life)
            unkept = unkept_by_end(life, self._first, self._end)
        if unkept is not None:
            return replace(found, difference=unkept.difference, diagnosis=unkept.diagnosis)
        return found

    def _interrupted(
        self, found: Continuation, saver: Life, whole: Life, after: int, shaky: frozenset[str]
    ) -> Continuation:
        """Begin once more after ``after``, kill the job on the other number, and compare it with ``whole``."""
        root, begun = f"elastic-{after}-killed", self._at(after)
        self._copy(saver, after, root)
        death = self._death(whole, begun)
        who = victims(0, len(whole.each_rank))
        words = f"from {begun} on; save after {death.save}, SIGKILL after {death.kill}"
        parts = (
            (words, Part("", root, self._end, death, begun, who=who)),
            (f"from {death.save} on, to the end", Part("", root, self._end, begun=death.save)),
        )
        for words, part in parts:
            life = self._on_other_ranks(words, part)
            last = min(life.planned_kill or whole.last_step, whole.last_step)
            differs = self._difference(life, whole, last)
            losses = {*found.other_losses, *other_losses(life, whole, last)}
            steps = sum(step <= last for one in life.each_rank for step in one.steps)
            found = replace(found, compared=found.compared + steps, other_losses=tuple(sorted(losses)))
            if differs is not None:
                return replace(found, difference=differs, diagnosis=diagnose_resume(differs, shaky))
        return found

    def _death(self, whole: Life, begun: int) -> Death:
        """Choose where the job on the other number saves and is killed: in mid-cycle if possible."""
        steps = range(begun + 1, whole.last_step)
        inside = [step for step in steps if not whole.steps[step].progress.at_boundary] or steps
        middle = (begun + whole.last_step) / 2
        save = min(inside, key=lambda step: abs(step - middle))
        return Death(save, save + 1)

    def _refusal(self, change: Change) -> Diagnosis:
        assert change.refused is not None  # noqa: S101 - none was restored
        onto = len(self._fresh.each_rank)
        return Diagnosis(
            "refused",
            f"{ranks_in_words(self._ranks)}, then {ranks_in_words(onto)}",
            change.refused,
            "what the message says; docs/ranks.md has what an elastic resume needs",
        )
