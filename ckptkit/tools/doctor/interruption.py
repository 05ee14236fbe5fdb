"""Runs the lives of a run that is killed and resumed: as the doctor plans them, and as the script saves by itself.

Guarantees: each life is run only when it is asked for. What there is no time for is left out before it begins. Main
thread only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ckptkit.tools.doctor.budget import Fitting, LifeCost, TimeBudget
from ckptkit.tools.doctor.lives.trace import LifePlan, scratch_run
from ckptkit.tools.doctor.lives.trial import TrialLife
from ckptkit.tools.doctor.plan import PlannedKill, plan_deaths, victims
from ckptkit.tools.doctor.report import DoctorOptions, UnusableScriptError


@dataclass(frozen=True)
class Interruptions:
    """Runs the lives of one run that is interrupted, one after the other.

    Attributes:
        options: How to examine.
        folder: Where the scratch roots are.
        first: The uninterrupted life.
        fitting: How many micro-steps and kills there is time for.
        cost: What a life costs; None without a limit.
        budget: The time that is left.
        live: Runs a life that begins after the given micro-step.
    """

    options: DoctorOptions
    folder: Path
    first: TrialLife
    fitting: Fitting
    cost: LifeCost | None
    budget: TimeBudget
    live: Callable[[str, int, LifePlan], TrialLife]

    def lives(self) -> Iterator[tuple[TrialLife, int]]:
        """Run the lives; yield each with the micro-step after which it had to begin.

        Raises:
            UnusableScriptError: If the script's own saves are examined, and it has none.
            FailedLifeError, OSError: As in `Examination.run`.
        """
        first, last = self.first, self.fitting.steps
        at = [first.steps[step].progress for step in range(1, last + 1)]
        begun = 0
        deaths = plan_deaths(at, self.fitting.kills)
        for number, death in enumerate(deaths):
            if begun and not self._has_time_for(death, begun):
                break
            who = victims(number, len(first.each_rank))
            words = f"from {begun} on; save after {death.save}, SIGKILL after {death.kill}"
            words += "" if who is None else f" of rank {who[0]}"
            plan = LifePlan(root="root-3", stop=last, saves=(death.save,), kill=death.kill, kill_ranks=who)
            yield self.live(words, begun, plan), begun
            begun = death.save
        beyond = last + (last == first.last_step and first.ended_by_itself)
        yield self.live(f"from {begun} on, to the end", begun, LifePlan(root="root-3", stop=beyond)), begun
        if self.options.own_saves:
            yield from self._saving_itself()

    def _saving_itself(self) -> Iterator[tuple[TrialLife, int]]:
        """Do the same with one run whose checkpoints are the script's own.

        If it has mirrors, it loses its root in between, as with its machine: it resumes from what they hold.

        Raises:
            UnusableScriptError: If it has no checkpoint that a life could resume from.
        """
        last, words = self.fitting.steps, "its own saves, SIGKILL after one"
        killed = self.live(words, 0, LifePlan(root="root-4", stop=last, own_saves=True, kill_when_saved=True))
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
            if self.first.ended_by_itself and self.first.last_step == last:
                fix = "It ends there: let it save before, such as by SaveEvery(micro_steps=...)"
            raise UnusableScriptError(f"within {last} micro-steps, {none}. {fix}")
        words, at = "its own saves", killed.saved[-1].step
        if begun is not None and mirrors:
            shutil.rmtree(scratch_run(self.folder / "root-4", begun.url))
            words = "its own saves at its mirror" if mirrors == 1 else f"its own saves at its {mirrors} mirrors"
        yield self.live(f"{words}, from {at} on", at, LifePlan(root="root-4", stop=last, own_saves=True)), at

    def _has_time_for(self, death: PlannedKill, begun: int) -> bool:
        """Return whether another kill fits, with the lives after it."""
        cost = self.cost
        if cost is None:
            return True
        killed = replace(cost, end=0.0).of_life(death.kill - begun)
        own = cost.of_chain(self.fitting.steps, 1) if self.options.own_saves else 0.0
        return self.budget.allows(killed + cost.of_life(self.fitting.steps - death.save) + own)
