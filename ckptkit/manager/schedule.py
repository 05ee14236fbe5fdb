"""Decides when to save: what a policy says, the interval of `SaveEvery.auto`, and at which moment a job ends early.

All ranks of a job save at the same micro-steps: rank 0 chooses the interval from what it measured. Training thread
only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import SavePolicy, automatic, due_from, stretched
from ckptkit.core.text import many, span
from ckptkit.format.documents import StrictModel
from ckptkit.format.events import Interval
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.manager.options import MidCycle
from ckptkit.manager.preemption import PreemptionRequest
from ckptkit.manager.writer import SaveResults
from ckptkit.run.interval import REASONS, ChosenInterval, History, SaveTimes, choose_interval, frequency
from ckptkit.snapshot import Capturable

_log = logging.getLogger("ckptkit")

_SAVES = 8  # of which the mean time of a cycle is taken
_LEAST = 8  # micro-steps to remember; with a larger K a whole cycle, so that the update is included
_SAFETY = 1.5
_NEWS = 1.5  # by which factor the number of cycles has to change to be told
_MEET_EVERY = timedelta(seconds=1)
_MOST_MICRO_STEPS = 10_000  # upper limit between two meetings, however short the micro-steps are

Verdict = Literal["train", "finish the cycle", "save"]


class SaveSchedule:
    """Decides in one attempt whether a save is due: a policy, ``mid_cycle``, and the interval of `SaveEvery.auto`."""

    def __init__(
        self,
        policy: SavePolicy,
        mid_cycle: MidCycle,
        rank_sync: RankSync,
        results: SaveResults,
        history: History | None = None,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        record: Callable[[Interval], None] = lambda event: None,
    ) -> None:
        self._policy, self._mid_cycle = policy, mid_cycle
        self._rank_sync = rank_sync
        self._waits_for_boundary = False
        self._cycle_start: Progress | None = None
        # Of `SaveEvery.auto`, which rank 0 measures for all.
        self._auto = automatic(policy)
        self._results, self._history, self._record = results, history or History(), record
        self._clock, self._monotonic = clock, monotonic
        self._began_at = monotonic()
        self._boundaries: deque[tuple[int, float]] = deque(maxlen=_SAVES)  # cycles and seconds at begins of saves
        self._logged_cycles: int | None = None
        self._has_told_stretch = False
        self._interval_cycles = 1 if self._history.interval is None else self._history.interval.cycles

    def begin(self, progress: Progress) -> None:
        """Let all ranks agree on the first interval of `SaveEvery.auto`, if that is used; a collective then."""
        if self._auto is not None:
            self._interval_cycles = int(self._rank_sync.gather(str(self._interval_cycles))[0])
            self._wait_until(progress.cycles + self._interval_cycles)

    def is_due(self, progress: Progress, since: timedelta) -> bool:
        """Return whether to save now, ``since`` after the last save began; may be a collective."""
        decide = self._due_by_clock if self._rank_sync.is_alone else self._agree_on_due
        due = decide(progress, since)
        if self._mid_cycle == "align":
            due = due or self._waits_for_boundary
            self._waits_for_boundary = due and not progress.at_boundary
            return due and progress.at_boundary
        return due

    def _agree_on_due(self, progress: Progress, since: timedelta) -> bool:
        """Return whether a save is due by the policy, in all ranks or in none.

        A policy that counts steps gives the same answer in every rank and needs no message. Where it reads a clock,
        rank 0 decides, at boundaries only.
        """
        if self._policy.due(progress, timedelta(0)):
            return True
        if not getattr(self._policy, "by_clock", True) or not progress.at_boundary:
            return False
        return self._rank_sync.flags(self._due_by_clock(progress, since))[0]

    def _due_by_clock(self, progress: Progress, since: timedelta) -> bool:
        if not self._policy.due(progress, since):
            return False
        stall = self._results.mean_stall_seconds
        longer = stretched(self._policy, stall)
        if longer == self._policy or longer.due(progress, since):
            return True
        if not self._has_told_stretch:
            self._has_told_stretch = True
            _log.info("each save keeps training waiting for %s, so by the clock they come less often", span(stall))
        return False

    def begin_cycle(self, state: Capturable, progress: Progress) -> None:
        """At a boundary, let ``state`` keep what ``"rewind"`` stores until the next one."""
        if self._mid_cycle == "rewind" and progress.at_boundary:
            self._cycle_start = state.mark_cycle_start()

    def is_rewound(self, progress: Progress) -> bool:
        """Return whether a save that is due at ``progress`` stores the start of its cycle."""
        start = self._cycle_start
        return start is not None and start.cycles == progress.cycles and start != progress

    def begun(self, cycles: int, interval: int | None) -> None:
        """Note that a save begins in all ranks, and that the next one is to come ``interval`` cycles later."""
        if self._auto is None or interval is None:
            return
        self._interval_cycles = interval
        if not self._boundaries or cycles > self._boundaries[-1][0]:
            self._boundaries.append((cycles, self._monotonic()))
        self._wait_until(cycles + interval)

    def skipped(self, cycles: int) -> None:
        """Note that a save that was due was skipped in all ranks: with `SaveEvery.auto` it comes a little later."""
        self._wait_until(cycles + max(1, self._interval_cycles // 4))

    def _wait_until(self, cycle: int) -> None:
        self._policy = due_from(self._policy, cycle)

    def see(self, cycles: int) -> None:
        """Begin to measure at the first boundary of the attempt: what comes before it includes the compilation."""
        if not self._boundaries:
            self._boundaries.append((cycles, self._monotonic()))

    def proposal(self, cycles: int) -> int | None:
        """Return the interval from a save at ``cycles`` on, as this rank measures it; None without `SaveEvery.auto`."""
        if self._auto is None:
            return None
        known = self._history.interval
        cycle_seconds = None if known is None else known.cycle_seconds
        times = None if known is None else SaveTimes(known.stall_seconds, known.took_seconds)
        if self._boundaries and cycles > self._boundaries[0][0]:
            first, since = self._boundaries[0]
            cycle_seconds = max((self._monotonic() - since) / (cycles - first), 1e-6)
        if self._results.durations:
            times = SaveTimes(self._results.mean_stall_seconds, max(self._results.durations).total_seconds())
        if cycle_seconds is None or times is None:
            return 2 * self._interval_cycles
        failures = self._history.failures.longer(self._monotonic() - self._began_at)
        choice = choose_interval(times, failures, self._auto.overhead)
        interval = max(1, round(choice.seconds / cycle_seconds))
        self._report(choice, interval, cycle_seconds)
        return interval

    def _report(self, choice: ChosenInterval, interval: int, cycle_seconds: float) -> None:
        if self._logged_cycles is not None and self._logged_cycles < _NEWS * interval < _NEWS**2 * self._logged_cycles:
            return
        self._logged_cycles = interval
        _log.info(
            "saves come %s, because of %s: each keeps training waiting for %s and takes %s; %s in %s",
            frequency(interval, cycle_seconds, choice.seconds),
            *(REASONS[choice.bound], span(choice.times.stall_seconds), span(choice.times.took_seconds)),
            *(many(choice.failures.count, "failure"), span(choice.failures.seconds)),
        )
        self._record(
            Interval(
                at=self._clock().isoformat(),
                cycles=interval,
                cycle_seconds=cycle_seconds,
                seconds=choice.seconds,
                bound=choice.bound,
                overhead=self._auto.overhead if self._auto is not None else 0.0,
                stall_seconds=choice.times.stall_seconds,
                took_seconds=choice.times.took_seconds,
                failures=choice.failures.count,
                exposed_seconds=choice.failures.seconds,
            )
        )


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
