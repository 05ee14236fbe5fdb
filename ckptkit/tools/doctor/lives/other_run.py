"""Lets a process train at other run roots besides the one that the doctor follows.

Guarantees: which run is followed does not change once one is. The other runs begin, save and continue as the plan says
of the followed one, each in its own micro-steps, so that a killed process finds checkpoints of all of them; they are
neither compared nor killed. Training thread only.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptkit.manager.hooks import Save, SaveHandle
from ckptkit.tools.doctor.lives.trace import LifePlan


class Runs:
    """Holds what the managers of one process have to know of each other.

    Args:
        plan: The plan of this life.

    Attributes:
        plan: The same.
        followed: The run root that is followed; None before its restore.
        at: The last micro-step there; 0 before one.
        others: The last micro-step at each other root.
    """

    def __init__(self, plan: LifePlan) -> None:
        self.plan = plan
        self.followed: str | None = None
        self.at = 0
        self.others: dict[str, int] = {}
        self._begun_since: dict[str, int] = {}  # other roots that began after the last micro-step, and where

    def follows(self, url: str) -> bool:
        """Return whether the run at ``url``, which has restored now, is the one to follow."""
        if self.followed is None and url not in self.plan.others:
            self.followed = url
        return url == self.followed

    def step(self, at: int) -> None:
        """Note that the followed run has ended micro-step ``at``."""
        self.at = at
        self._begun_since.clear()

    def other_begins(self, url: str, at: int) -> None:
        """Note that the run at the other root ``url`` continues after micro-step ``at``."""
        self.others[url] = at
        if self.at:
            self._begun_since[url] = at

    def is_over(self, url: str) -> bool:
        """Return whether the followed run seems to have ended: the one at ``url`` began since, and has come far."""
        begun = self._begun_since.get(url)
        return begun is not None and self.others[url] - begun >= self.plan.stop


class OtherRun:
    """Stands for a run that is not followed.

    Args:
        runs: All runs of the process.
        url: The run root that the script gave.
        at: The micro-step after which it continues.
        settle: Waits for a save.
        stop: Ends the process after a micro-step of the followed run.
    """

    def __init__(
        self, runs: Runs, url: str, at: int, *, settle: Callable[[SaveHandle], None], stop: Callable[[int], object]
    ) -> None:
        self._runs, self._url = runs, url
        self._settle, self._stop = settle, stop
        runs.other_begins(url, at)

    def look(self, step: int, save: Save) -> None:
        """Save after micro-step ``step`` if the plan says so; end the process if the followed run is over."""
        if step == self._runs.others[self._url]:
            return
        self._runs.others[self._url] = step
        if step in self._runs.plan.saves:
            self._settle(save({}))
        if self._runs.is_over(self._url):
            self._stop(self._runs.at)
