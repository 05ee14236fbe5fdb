"""Decides at which micro-step a training that was asked to end saves and ends, within the grace: `EndSchedule`.

All ranks of a job end at the same micro-step. Training thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

from ckptkit.core.progress import Progress
from ckptkit.format.documents import StrictModel
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.manager.preemption import PreemptionRequest
from ckptkit.manager.writer import SaveResults

_LEAST = 8  # micro-steps to remember; with a larger K a whole cycle, so that the update is included
_SAFETY = 1.5
_MEET_EVERY = timedelta(seconds=1)
_MOST_MICRO_STEPS = 10_000  # upper limit between two meetings, however short the micro-steps are

Verdict = Literal["train", "finish the cycle", "save"]


class _Sign(StrictModel):
    """Holds what one rank reports at a meeting; only rank 0's ``next_in`` counts."""

    asked: bool
    dead_child: str = ""
    left: timedelta  # of the grace
    micro_step: timedelta | None  # the longest of the last ones
    save: timedelta | None  # how long everything that has to be written takes
    next_in: int


class EndSchedule:
    """Decides when a training that was asked to end saves and ends; for that it measures the micro-steps."""

    def __init__(
        self, preemption: PreemptionRequest, rank_sync: RankSync, results: SaveResults, monotonic: Callable[[], float]
    ) -> None:
        self._preemption = preemption
        self._rank_sync = rank_sync
        self._results = results
        self._monotonic = monotonic
        self._seconds: deque[float] = deque(maxlen=_LEAST)
        self._since: float | None = None
        self._next_in = 1

    def pause(self) -> None:
        self._since = None
        HEARTBEAT.enter(Phase.EVALUATING)

    def arrive(self, accumulation_steps: int) -> None:
        """Record that a micro-step has ended; it is measured if `depart` began it."""
        if (self._seconds.maxlen or 0) < accumulation_steps:
            self._seconds = deque(self._seconds, maxlen=accumulation_steps)
        if self._since is not None:
            self._seconds.append(self._monotonic() - self._since)
        self._since = None

    def depart(self) -> None:
        self._since = self._monotonic()

    def verdict(self, progress: Progress) -> Verdict:
        """Say what follows the micro-step that has just ended; with many ranks a collective, about once a second."""
        asked = self._preemption.poll()
        self._next_in -= 1
        if self._next_in > 0 or (self._rank_sync.is_alone and not asked):
            return "train"
        signs = self._rank_sync.exchange(self._sign(asked))
        if not any(sign.asked for sign in signs):
            self._next_in = signs[0].next_in
            return "train"
        self._next_in = 1
        if not asked:
            rank = max(range(len(signs)), key=lambda rank: (signs[rank].dead_child != "", signs[rank].asked))
            self._preemption.ask(f"rank {rank} was asked to end", signs[rank].dead_child)
        micro_step, save = signs[0].micro_step, signs[0].save
        if progress.at_boundary or micro_step is None or save is None:
            return "save"
        needed = ((progress.accumulation_steps - progress.micro_step) * micro_step + save) * _SAFETY
        return "finish the cycle" if needed <= min(sign.left for sign in signs) else "save"

    def _sign(self, asked: bool) -> _Sign:
        micro_step = timedelta(seconds=max(self._seconds)) if self._seconds else None
        longest = max(self._results.durations, default=None)
        if longest is not None and self._results.in_flight is not None:
            longest *= 2  # the save under way has to end first
        every = 1 if micro_step is None else _MEET_EVERY / max(micro_step, timedelta(microseconds=1))
        return _Sign(
            asked=asked,
            dead_child=self._preemption.dead_child,
            left=timedelta(seconds=self._preemption.seconds_left()),
            micro_step=micro_step,
            save=longest,
            next_in=max(1, int(min(every, _MOST_MICRO_STEPS))),
        )
