"""Runs the examination: two uninterrupted lives, then killed and resumed ones, each compared with the first.

Guarantees: stops at the first difference; writes only below the given folder; a life begins when the one before has
ended. In a job of many ranks, lives lose one rank or all, and every rank is compared with itself. Main thread only.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from ckptkit.tools.doctor.budget import FEWEST_STEPS, Fitting, LifeCost, TimeBudget, cost_of
from ckptkit.tools.doctor.causes import Diagnosis, diagnose_disagreement, diagnose_resume, diagnose_unequal_replica
from ckptkit.tools.doctor.compare import (
    TraceDifference,
    begun_too_early,
    beyond_the_end,
    first_difference,
    first_unequal_replica,
    marks_of_process,
    other_losses,
    unstable,
)
from ckptkit.tools.doctor.lives.life_process import TrialLife, live
from ckptkit.tools.doctor.lives.trace import LifePlan, scratch_run
from ckptkit.tools.doctor.lost_values import noted
from ckptkit.tools.doctor.plan import PlannedKill, plan_deaths, victims
from ckptkit.tools.doctor.result import DoctorOptions, FailedLifeError, Report, UnusableScriptError, checked, failure_of


@dataclass
class DoctorExamination:
    """Runs one examination of ``command``."""

    command: Sequence[str]  # the user's command, program first
    folder: Path  # an empty folder for everything that is written
    options: DoctorOptions
    _: KW_ONLY
    monotonic: Callable[[], float]
    begins: Callable[[str, int], None]  # called with a description of the next life, and the number of its micro-steps
    stepped: Callable[[int], None]  # called now and then with the number of micro-steps that the running life has done

    def __post_init__(self) -> None:
        self._others: tuple[str, ...] = ()  # run roots that are not examined: known after the first life
        self._lives: list[TrialLife] = []
        self._budget = TimeBudget(self.options.within, self.monotonic)
        self._cost: LifeCost | None = None  # known after the first life
        self._ignored: frozenset[str] = frozenset()

    def run(self) -> Report:
        """Run all lives, up to the first difference.

        Raises UnusableScriptError if the script cannot be examined, for lack of a checkpoint manager, of micro-steps or
        of time for one kill; FailedLifeError if a life failed by itself; and OSError if the folder cannot be written,
        or the command cannot be started.
        """
        steps, enough = self.options.steps, self._budget.first_ends
        first = self._live("uninterrupted", 0, LifePlan(root="root-1", stop=steps, enough=enough))
        unequal = first_unequal_replica(first)
        if unequal is not None:  # first: a save that the script makes itself has ended such a life with an error
            return self._report(first, first.last_step, unequal, diagnose_unequal_replica(unequal))
        done = checked(first)
        self._others = tuple(first.others)  # one may train first after a resume
        fitting = self._fitting(first, done)
        last = fitting.steps
        second = self._live("uninterrupted, once more", 0, LifePlan(root="root-2", stop=last))
        self._ignored = marks_of_process(first, second)
        difference = self._difference(second, first, last)
        if difference is not None:
            return self._report(first, last, difference, diagnose_disagreement(difference))
        shaky = [unstable(mine, its) for mine, its in zip(first.each_rank, second.each_rank, strict=True)]
        notes: dict[str, None] = {}
        for life, begun in self._interrupted(first, fitting):
            until = life.planned_kill or last
            difference = self._difference(life, first, until)
            # What was done again from too early on may well differ; that it was done at all comes first.
            difference = begun_too_early(life, first, begun) or difference
            if difference is not None:
                diagnosis = diagnose_resume(difference, shaky[difference.rank or 0])
                return self._report(first, last, difference, diagnosis)
            notes.update(dict.fromkeys(_notes(life, first, until, shaky)))
        return self._report(first, last, notes=tuple(notes))

    def _fitting(self, first: TrialLife, done: int) -> Fitting:
        """Return how many micro-steps and kills there is time for; raise UnusableScriptError if not for one kill."""
        if self.options.within is None:
            return Fitting(done, self.options.kills)
        self._cost = cost_of(first)
        own_saves = self.options.own_saves
        fitting = self._budget.fit(self._cost, done, self.options.kills, own_saves=own_saves)
        if fitting is None:
            raise UnusableScriptError(
                f"{self._budget.total:.0f} s are not enough for one kill: a life takes {self._cost}, and "
                f"{'six' if own_saves else 'four'} lives of {FEWEST_STEPS} micro-steps are needed. Allow "
                f"{math.ceil(self._budget.needed(self._cost, own_saves=own_saves))} s or more"
            )
        return fitting

    def _interrupted(self, first: TrialLife, fitting: Fitting) -> Iterator[tuple[TrialLife, int]]:
        """Run the lives of one run that is interrupted; yield each with the micro-step after which it had to begin.

        A life is run only when it is asked for. What there is no time for is left out before it begins.
        """
        last = fitting.steps
        at = [first.steps[step].progress for step in range(1, last + 1)]
        begun = 0
        for number, death in enumerate(plan_deaths(at, fitting.kills)):
            if begun and not self._has_time_for(death, begun, last):
                break
            who = victims(number, len(first.each_rank))
            words = f"from {begun} on; save after {death.save}, SIGKILL after {death.kill}"
            words += "" if who is None else f" of rank {who[0]}"
            plan = LifePlan(root="root-3", stop=last, saves=(death.save,), kill=death.kill, kill_ranks=who)
            yield self._live(words, begun, plan), begun
            begun = death.save
        beyond = last + (last == first.last_step and first.ended_by_itself)
        yield self._live(f"from {begun} on, to the end", begun, LifePlan(root="root-3", stop=beyond)), begun
        if self.options.own_saves:
            yield from self._saving_itself(first, last)

    def _saving_itself(self, first: TrialLife, last: int) -> Iterator[tuple[TrialLife, int]]:
        """Do the same with one run whose checkpoints are the script's own.

        If it has mirrors, it loses its root in between, as with its machine: it resumes from what they hold.
        """
        words = "its own saves, SIGKILL after one"
        killed = self._live(words, 0, LifePlan(root="root-4", stop=last, own_saves=True, kill_when_saved=True))
        yield killed, 0
        begun = killed.begun
        mirrors = len(begun.mirrors) if begun is not None else 0
        if not killed.saved:
            none = (
                "the script uploaded no checkpoint to a mirror"
                if mirrors
                else "the script committed no checkpoint by itself"
            )
            fix = "Give more --steps than lie between two of its saves"
            if first.ended_by_itself and first.last_step == last:
                fix = "It ends there: let it save before, such as by SaveEvery(micro_steps=...)"
            raise UnusableScriptError(f"within {last} micro-steps, {none}. {fix}")
        words, at = "its own saves", killed.saved[-1].step
        if begun is not None and mirrors:
            shutil.rmtree(scratch_run(self.folder / "root-4", begun.url))
            words = "its own saves at its mirror" if mirrors == 1 else f"its own saves at its {mirrors} mirrors"
        yield self._live(f"{words}, from {at} on", at, LifePlan(root="root-4", stop=last, own_saves=True)), at

    def _has_time_for(self, death: PlannedKill, begun: int, last: int) -> bool:
        """Return whether another kill fits, with the lives after it."""
        cost = self._cost
        if cost is None:
            return True
        killed = replace(cost, end=0.0).of_life(death.kill - begun)
        own = cost.of_chain(last, 1) if self.options.own_saves else 0.0
        return self._budget.allows(killed + cost.of_life(last - death.save) + own)

    def _live(self, words: str, begun: int, plan: LifePlan) -> TrialLife:
        """Run a life that begins after micro-step ``begun``; the folder, trace and seed of ``plan`` are filled in."""
        self.begins(words, (plan.kill or plan.stop) - begun)
        name = f"life-{len(self._lives) + 1:03d}"
        places = {"root": str(self.folder / plan.root), "trace": str(self.folder / f"{name}.trace")}
        seed = None if begun else self.options.seed
        plan = plan.model_copy(update={**places, "others": self._others, "seed": seed})
        life = live(
            self.command,
            name,
            plan,
            time_limit=self._budget.limit(self.options.time_limit),
            monotonic=self.monotonic,
            on_step=self.stepped,
        )
        ranks = len(life.each_rank)
        if self._lives and life.begun is not None and ranks != len(self._lives[0].each_rank):
            raise UnusableScriptError(
                f"the job had {len(self._lives[0].each_rank)} ranks in its first life and {ranks} in "
                f"{life.name}; start it with the same number each time"
            )
        self._lives.append(life)
        if life.exit_code is None and self._budget.is_over:
            raise UnusableScriptError(self._out_of_time(life))
        return life

    def _out_of_time(self, life: TrialLife) -> str:
        known = "" if self._cost is None else f"; the first life took {self._cost}"
        kills = sum(earlier_life.planned_kill is not None for earlier_life in self._lives[:-1])
        return (
            f"{self._budget.total:.0f} s were over in {life.name} after {life.last_step} micro-steps and {kills} kills"
            f"{known}. Allow more time"
        )

    def _difference(self, life: TrialLife, first: TrialLife, until: int) -> TraceDifference | None:
        difference = first_difference(life, first, until, self._ignored) or beyond_the_end(life, first, until)
        is_found = difference is not None and (difference.found is not None or life.failed_in_training)
        if not life.ended_as_planned and not is_found:
            raise FailedLifeError(failure_of(life), life)
        return difference

    def _report(
        self,
        first: TrialLife,
        last: int,
        difference: TraceDifference | None = None,
        diagnosis: Diagnosis | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        lives = self._lives[1:]
        losses = {step for life in lives for step in other_losses(life, first, min(life.last_step, last))}
        return Report(
            url="" if first.begun is None else first.begun.url,
            others=self._others,
            steps=last,
            lives=tuple(self._lives),
            compared=sum(map(_compared, lives)),
            values=len(first.steps[first.last_step].digests),
            difference=difference,
            diagnosis=diagnosis,
            other_losses=tuple(sorted(losses)),
            notes=notes,
            ranks=len(first.each_rank),
            seconds=self._budget.spent,
        )


def _notes(life: TrialLife, first: TrialLife, until: int, shaky: Sequence[frozenset[str]]) -> list[str]:
    ranks = zip(life.each_rank, first.each_rank, shaky, strict=True)
    return [path for mine, its, unstable in ranks for path in noted(mine, its, until, unstable)]


def _compared(life: TrialLife) -> int:
    # After a kill of one rank, others may go on for a moment.
    until = life.planned_kill or life.last_step
    return sum(step <= until for rank in life.each_rank for step in rank.steps)
