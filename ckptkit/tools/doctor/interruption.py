"""Runs the lives of a run that is killed and resumed: as the doctor plans them, and as the script saves by itself.

Guarantees: each life is run only when it is asked for. What there is no time for is left out before it begins. Main
thread only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ckptkit.tools.doctor.budget import Budget, Cost, Fitting
from ckptkit.tools.doctor.later import begins_later, is_complete
from ckptkit.tools.doctor.lives.trace import scratch_run
from ckptkit.tools.doctor.lives.trial import Life
from ckptkit.tools.doctor.plan import Death, Part, plan_deaths, victims
from ckptkit.tools.doctor.report import Options, UnusableScriptError


class Interruptions:
    """Runs the lives of one run that is interrupted, one after the other.

    Args:
        options: How to examine.
        folder: Where the scratch roots are.
        first: The uninterrupted life.
        fitting: How many micro-steps and kills there is time for.
        cost: What a life costs; None without a limit.
        budget: The time that is left.
        live: Runs a life.
        give_up_waiting: Ends the process that was started for the next life.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        first: Life,
        *,
        fitting: Fitting,
        cost: Cost | None,
        budget: Budget,
        live: Callable[[Part], Life],
        give_up_waiting: Callable[[], None],
    ) -> None:
        self._options, self._folder, self._first = options, folder, first
        self._last, self._kills = fitting.steps, fitting.kills
        self._cost, self._budget = cost, budget
        self._live, self._give_up_waiting = live, give_up_waiting

    def lives(self) -> Iterator[tuple[Life, int]]:
        """Run the lives; yield each with the micro-step after which it had to begin.

        Raises:
            UnusableScriptError: If the script's own saves are examined, and it has none.
            FailedLifeError, OSError: As in `Examination.run`.
        """
        first, last = self._first, self._last
        at = [first.steps[step].progress for step in range(1, last + 1)]
        begun = 0
        deaths = plan_deaths(at, self._kills, every_micro_step=self._options.every_micro_step)
        for number, death in enumerate(deaths):
            if begun and not self._has_time_for(death, begun):
                break
            who = victims(number, len(first.each_rank))
            words = f"from {begun} on; save after {death.save}, SIGKILL after {death.kill}{_of(who)}"
            yield self._live(Part(words, "root-3", last, death, begun, then=death.save, who=who)), begun
            begun = death.save
        own = 0 if self._options.own_saves else None
        followed_on = begins_later(first, last)
        beyond = last + (last == first.last_step and first.ended_by_itself)
        then = last if followed_on else own
        yield self._live(Part(f"from {begun} on, to the end", "root-3", beyond, None, begun, then)), begun
        if followed_on and is_complete(self._folder / "root-3", first, last) and self._has_time_to_follow():
            yield self._live(Part("the next run, after a complete one", "root-3", beyond, None, last, own)), last
        elif followed_on:
            self._give_up_waiting()  # it was not seeded, as befits a life that resumes
        if self._options.own_saves:
            yield from self._saving_itself()

    def _saving_itself(self) -> Iterator[tuple[Life, int]]:
        """Do the same with one run whose checkpoints are the script's own.

        If it has mirrors, it loses its root in between, as with its machine: it resumes from what they hold.

        Raises:
            UnusableScriptError: If it has no checkpoint that a life could resume from.
        """
        last, words = self._last, "its own saves, SIGKILL after one"
        killed = self._live(Part(words, "root-4", last, then=1, own_saves=True, kill_when_saved=True))
        yield killed, 0
        begun = killed.begun
        mirrors = len(begun.mirrors) if begun is not None else 0
        if not killed.saved:
            none = "the script committed no checkpoint by itself"
            if mirrors:
                none = "the script uploaded no checkpoint to a mirror"
            fix = "Give more --steps than lie between two of its saves"
            if self._first.ended_by_itself and self._first.last_step == last:
                fix = "It ends there: let it save before, such as by SaveEvery(micro_steps=...)"
            raise UnusableScriptError(f"within {last} micro-steps, {none}: its own saves cannot be examined. {fix}")
        words, at = "its own saves", killed.saved[-1].step
        if begun is not None and mirrors:
            shutil.rmtree(scratch_run(self._folder / "root-4", begun.url))
            words = "its own saves at its mirror" if mirrors == 1 else f"its own saves at its {mirrors} mirrors"
        yield self._live(Part(f"{words}, from {at} on", "root-4", last, None, at, own_saves=True)), at

    def _has_time_for(self, death: Death, begun: int) -> bool:
        """Return whether another kill fits, with the lives after it."""
        cost = self._cost
        if cost is None:
            return True
        killed = replace(cost, end=0.0).of_life(death.kill - begun)
        return self._budget.allows(killed + cost.of_life(self._last - death.save) + self._own_cost(cost))

    def _has_time_to_follow(self) -> bool:
        """Return whether a life fits that only follows a complete run, with the lives after it."""
        cost = self._cost
        return cost is None or self._budget.allows(cost.start + cost.end + self._own_cost(cost))

    def _own_cost(self, cost: Cost) -> float:
        """Return the seconds of the lives that examine the script's own saves."""
        return cost.of_chain(self._last, 1) if self._options.own_saves else 0.0


def _of(ranks: tuple[int, ...] | None) -> str:
    return "" if ranks is None else f" of rank {', '.join(map(str, ranks))}"
