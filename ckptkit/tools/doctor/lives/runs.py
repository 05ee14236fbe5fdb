"""Lets a process train at other run roots besides the one that the doctor follows.

Guarantees: which run is followed does not change once one is. The other runs begin, save and continue as the plan says
of the followed one, each in its own micro-steps, so that a killed process finds checkpoints of all of them; they are
not killed, and compared only if they begin when the followed one has ended. A second training at the followed root
continues its numbers. A run that is restored and never trained, such as a teacher's, counts for nothing. Training
thread only.
"""

from __future__ import annotations

from ckptkit.tools.doctor.lives.trace import LifePlan


class Runs:
    """Holds what the managers of one process have to know of each other.

    Args:
        plan: The plan of this life.

    Attributes:
        plan: The same.
        candidates: Run roots that were restored while none was followed and that the plan does not leave out.
        followed: The one that is followed, which is the first of them to end a micro-step; None before that.
        at: Its last micro-step, or where it was restored if no other may be followed; 0 before one.
        trained: The other roots at which a micro-step has ended.
    """

    def __init__(self, plan: LifePlan) -> None:
        self.plan = plan
        self.candidates: list[str] = []
        self.followed: str | None = None
        self.at = 0
        self.trained: set[str] = set()
        self._stands: dict[str, int] = {}  # the micro-step after which each run of the process stands
        self._begun_since: set[str] = set()  # other roots that have trained only after `at`
        self._since: dict[str, int] = {}  # micro-steps of each other run after `at`
        self._most = dict(plan.others)  # of them, between two micro-steps of the followed run

    @property
    def others(self) -> dict[str, int]:
        """The micro-step after which each run stands that is not followed; 0 if it began afresh."""
        return {url: at for url, at in self._stands.items() if url != self.followed}

    def is_candidate(self, url: str, at: int) -> bool:
        """Return whether the run at ``url``, which is restored now after micro-step ``at``, may be followed."""
        self._stands[url] = at
        if self.followed is None and url not in self.plan.others and url not in self.candidates:
            self.candidates.append(url)
            if self.plan.others:  # all others are known, so this one is followed: it may have no micro-step left
                self.at = at
                self._since.clear()
        return url == self.followed or (self.followed is None and url in self.candidates)

    def follows(self, url: str) -> bool:
        """Return whether the run at ``url``, which ends a micro-step now, is the one to follow."""
        if self.followed is None and url in self.candidates:
            self.followed = url
        return url == self.followed

    def step(self, at: int) -> None:
        """Note that the followed run has ended micro-step ``at``."""
        self.at = at
        self._most.update({url: max(number, self._most.get(url, 0)) for url, number in self._since.items()})
        self._since.clear()
        self._begun_since.clear()

    def other_steps(self, url: str, at: int) -> None:
        """Note that the run at the other root ``url`` has ended micro-step ``at``."""
        if self.at and url not in self.trained:
            self._begun_since.add(url)
        self.trained.add(url)
        self._since[url] = self._since.get(url, 0) + 1
        self._stands[url] = at

    def began_after(self, url: str) -> bool:
        """Return whether the run at ``url`` has trained only since the followed one's last micro-step."""
        return url in self._begun_since

    def is_over(self, url: str) -> bool:
        """Return whether the followed run seems to have ended: the one at ``url`` has come far since, for its pace.

        After a single micro-step of the followed run, its pace is not known.
        """
        return self.at > 1 and self._since.get(url, 0) >= self._most.get(url, 0) + self.plan.stop
