"""Chooses the interval of `SaveEvery.auto` while training runs, and records why.

Guarantees: the interval changes when a save begins, and nowhere else. In a job of many ranks rank 0 chooses it from
what it measured, and the other ranks use what it says. Without `SaveEvery.auto` it does nothing. Training thread only.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime

from ckptkit.core.save_policy import SaveAuto
from ckptkit.core.text import many, span
from ckptkit.format.events import Interval
from ckptkit.manager.results import SaveResults
from ckptkit.run.interval import NO_HISTORY, ChosenInterval, History, SaveTimes, choose_interval, frequency

_log = logging.getLogger("ckptkit")

_SAVES = 8  # of which the mean stall is taken, and the mean time of a cycle
_NEWS = 1.5  # by which factor the number of cycles has to change to be told


class AutoInterval:
    """Chooses how many cycles lie between two saves of one attempt.

    Args:
        auto: The policy; None if the schedule has none.
        results: What the saves cost.
        history: What earlier attempts recorded.
        clock: Gives the time of day.
        monotonic: Gives seconds.

    Attributes:
        cycles: The interval that is in use.
        record: Called with each interval that is news.
    """

    def __init__(
        self,
        auto: SaveAuto | None,
        results: SaveResults,
        history: History = NO_HISTORY,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._auto = auto
        self._results = results
        self._history = history
        self._clock = clock
        self._monotonic = monotonic
        self._stalled_seconds = 0.0
        self._stalling_since: float | None = None
        self._stalls: deque[float] = deque([0.0], maxlen=_SAVES)  # at the begins of the last saves
        self._began_at = monotonic()
        self._boundaries: deque[tuple[int, float]] = deque(maxlen=_SAVES)  # cycles and seconds, at the same begins
        self._told: int | None = None  # cycles
        self.cycles = 1 if history.interval is None else history.interval.cycles
        self.record: Callable[[Interval], None] = _nowhere

    @property
    def is_used(self) -> bool:
        """Whether the schedule has a part that it chooses for."""
        return self._auto is not None

    def see(self, cycles: int) -> None:
        """Begin to measure at the first boundary of the attempt: what comes before it includes the compilation."""
        if not self._boundaries:
            self._boundaries.append((cycles, self._monotonic()))

    @contextlib.contextmanager
    def stalling(self) -> Iterator[None]:
        """Measure how long a save keeps training waiting; may be nested."""
        if self._stalling_since is not None:
            yield
            return
        self._stalling_since = self._monotonic()
        try:
            yield
        finally:
            self._stalled_seconds, self._stalling_since = self._stalled(), None

    def _stalled(self) -> float:
        since = self._stalling_since
        return self._stalled_seconds + (0.0 if since is None else max(0.0, self._monotonic() - since))

    def proposal(self, cycles: int) -> int | None:
        """Return the interval from a save at ``cycles`` on, as this rank measures it; None without `SaveEvery.auto`."""
        if self._auto is None:
            return None
        cycle_seconds, times = self._cycle_seconds(cycles), self._times()
        if cycle_seconds is None or times is None:
            return 2 * self.cycles
        failures = self._history.failures.longer(self._monotonic() - self._began_at)
        choice = choose_interval(times, failures, self._auto.overhead)
        interval = max(1, round(choice.seconds / cycle_seconds))
        self._tell(choice, interval, cycle_seconds)
        return interval

    def begin(self, cycles: int, interval: int) -> None:
        """Use ``interval`` from the save on that begins at ``cycles``."""
        self.cycles = interval
        self._stalls.append(self._stalled())
        if not self._boundaries or cycles > self._boundaries[-1][0]:
            self._boundaries.append((cycles, self._monotonic()))

    def later(self) -> int:
        """Return how many cycles a save waits that was put off because the one before is still being written."""
        return max(1, self.cycles // 4)

    def _cycle_seconds(self, cycles: int) -> float | None:
        if not self._boundaries or cycles <= self._boundaries[0][0]:
            return None if self._history.interval is None else self._history.interval.cycle_seconds
        first, since = self._boundaries[0]
        return max((self._monotonic() - since) / (cycles - first), 1e-6)

    def _times(self) -> SaveTimes | None:
        durations = self._results.durations
        if not durations:
            interval = self._history.interval
            return None if interval is None else SaveTimes(interval.stall_seconds, interval.took_seconds)
        stall = max(0.0, self._stalled() - self._stalls[0]) / len(self._stalls)  # with the save that is beginning
        return SaveTimes(stall, max(durations).total_seconds())

    def _tell(self, choice: ChosenInterval, interval: int, cycle_seconds: float) -> None:
        if self._told is not None and self._told < _NEWS * interval < _NEWS**2 * self._told:
            return
        self._told = interval
        _log.info(
            "saves come %s, because of %s: each keeps training waiting for %s and takes %s; %s in %s",
            frequency(interval, cycle_seconds, choice.seconds),
            *(_REASONS[choice.bound], span(choice.times.stall_seconds), span(choice.times.took_seconds)),
            *(many(choice.failures.count, "failure"), span(choice.failures.seconds)),
        )
        self.record(
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


_REASONS = {"failures": "the failures to expect", "overhead": "the share that saves may take", "storage": "the storage"}


def _nowhere(event: Interval) -> None:
    """Record nothing, in the ranks that do not record."""
