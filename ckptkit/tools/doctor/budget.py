"""Fits an examination into a given time, by what the first life has shown that a start and a micro-step cost.

Guarantees: what does not fit is left out before it begins, and at least one kill stays; otherwise nothing fits.
Estimates have a margin, because a restore, a save and a busy machine cost more than the first life shows. One thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from ckptkit.tools.doctor.lives.life_process import TrialLife

FEWEST_STEPS = 2
_MARGIN = 1.25
_SHARE_OF_FIRST = 0.2  # of the time: at least four lives follow each other
_STEPS_PER_KILL = 4
_REDONE = 2  # at most so many micro-steps are done again after a kill: see `plan_deaths`


@dataclass(frozen=True)
class LifeCost:
    """Holds what a life costs."""

    start: float  # seconds from its start to the end of its first micro-step
    step: float  # seconds of each further one
    end: float = 0.0  # seconds from the end of its last micro-step to its own, such as of another run that follows

    def of_life(self, steps: int) -> float:
        """Return the seconds of a life of so many micro-steps."""
        return self.start + max(0, steps - 1) * self.step + self.end

    def of_chain(self, steps: int, kills: int) -> float:
        """Return the seconds of one run that is killed so often, and resumed."""
        return (kills + 1) * self.start + (steps + kills * _REDONE) * self.step + self.end

    def of_rest(self, steps: int, kills: int, *, own_saves: bool = False) -> float:
        """Return the seconds of all lives after the first, for so many micro-steps and kills."""
        own = self.of_chain(steps, 1) if own_saves else 0.0
        return self.of_life(steps) + self.of_chain(steps, kills) + own

    def __str__(self) -> str:
        parts = [f"{self.start:.1f} s until its first micro-step has ended", f"{self.step:.2g} s for each further one"]
        parts += [f"{self.end:.1f} s after the last"] if self.end >= 1 else []
        return f"{', '.join(parts[:-1])}, and {parts[-1]}"


@dataclass(frozen=True)
class Fitting:
    """Says what fits: the micro-steps of each life, and the kills."""

    steps: int
    kills: int


class TimeBudget:
    """Watches the ``total`` time of one examination, from now on; None is without a limit.

    ``monotonic`` gives the seconds of `time.monotonic`: the probe in the script's process compares with them.
    """

    def __init__(self, total: timedelta | None, monotonic: Callable[[], float]) -> None:
        self.total = math.inf if total is None else total.total_seconds()
        self._monotonic = monotonic
        self._began = monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the examination began."""
        return self._monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return self.total - self.spent

    @property
    def is_over(self) -> bool:
        """Whether no time is left, apart from rounding."""
        return self.left < 0.001

    @property
    def first_ends(self) -> float | None:
        """When the first life should do no further micro-step; None without a limit."""
        return None if math.isinf(self.total) else self._began + self.total * _SHARE_OF_FIRST

    def limit(self, given: timedelta) -> timedelta:
        """Return ``given``, or what is left if that is less."""
        left = self.left
        return given if math.isinf(left) else min(given, timedelta(seconds=max(0.0, left)))

    def fit(self, cost: LifeCost, steps: int, kills: int, *, own_saves: bool = False) -> Fitting | None:
        """Return what fits into what is left, at most ``steps`` and ``kills``; None if not even one kill does.

        Kills come before micro-steps, as long as there are a few micro-steps for each. A life of fewer micro-steps than
        the first one stops there, before what followed in that.
        """
        stopped = replace(cost, end=0.0)
        for fewer in range(kills, 0, -1):
            fewest = max(FEWEST_STEPS, min(steps, _STEPS_PER_KILL * fewer)) if fewer > 1 else FEWEST_STEPS
            for shorter in range(steps, fewest - 1, -1):
                life_cost = cost if shorter == steps else stopped
                if self.allows(life_cost.of_rest(shorter, fewer, own_saves=own_saves)):
                    return Fitting(shorter, fewer)
        return None

    def allows(self, seconds: float) -> bool:
        """Return whether lives that are expected to take so long still fit."""
        return seconds * _MARGIN <= self.left

    def needed(self, cost: LifeCost, *, own_saves: bool = False) -> float:
        """Return the seconds in which one kill would have fit."""
        cost = replace(cost, end=0.0)  # two micro-steps are hardly all
        rest = cost.of_rest(FEWEST_STEPS, 1, own_saves=own_saves)
        return max((cost.of_life(FEWEST_STEPS) + rest) * _MARGIN, rest * _MARGIN / (1 - _SHARE_OF_FIRST))


def cost_of(first: TrialLife) -> LifeCost:
    """Return what ``first`` shows, which began the training."""
    at = [first.steps[step].at for step in sorted(first.steps)]
    end = max(0.0, first.began_at + first.seconds - at[-1])
    return LifeCost(at[0] - first.began_at, (at[-1] - at[0]) / max(1, len(at) - 1), end)
