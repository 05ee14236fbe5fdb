"""Decides when to save: what a policy says, and the interval of `SaveEvery.auto`.

All ranks of a job save at the same micro-steps: rank 0 chooses the interval from what it measured. Training thread
only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import SavePolicy, automatic, due_from, stretched
from ckptkit.core.text import many, span
from ckptkit.format.events import Interval
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.options import MidCycle
from ckptkit.manager.writer import SaveResults
from ckptkit.run.interval import REASONS, ChosenInterval, History, SaveTimes, choose_interval, frequency
from ckptkit.snapshot import Capturable

_log = logging.getLogger("ckptkit")

_SAVES = 8  # of which the mean time of a cycle is taken
_NEWS = 1.5  # by which factor the number of cycles has to change to be told


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
        if self._rank_sync.is_alone:
            due = self._policy.due(progress, since) and not self._is_stretched(progress, since)
        else:
            due = self._agree_on_due(progress, since)
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
        due = self._policy.due(progress, since) and not self._is_stretched(progress, since)
        return self._rank_sync.flags(due)[0]

    def _is_stretched(self, progress: Progress, since: timedelta) -> bool:
        """Return whether saves cost so much that one that is due by the policy has to wait."""
        stall = self._results.mean_stall_seconds
        longer = stretched(self._policy, stall)
        if longer == self._policy or longer.due(progress, since):
            return False
        if not self._has_told_stretch:
            self._has_told_stretch = True
            _log.info("each save keeps training waiting for %s, so by the clock they come less often", span(stall))
        return True

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
