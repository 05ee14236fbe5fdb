"""Chooses how often to save: what saves cost, against the work that failures destroy in a run's own history.

Arithmetic on measured values, so that a report repeats every choice from what was recorded; of the history, a bounded
number of files is read. Failures are taken to be independent of each other and of saves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptkit.core.text import many, span
from ckptkit.errors import StorageError
from ckptkit.format.events import Bound, Interval
from ckptkit.run.event_log import read_segments, segments_of
from ckptkit.run.goodput import life_of
from ckptkit.run.index import Documents
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")

SHORTEST_MEAN = 10.0  # seconds between failures; the prior: each octave from here
LONGEST_MEAN = 100 * 86_400.0  # up to here is as likely as any other
ROOM_FOR_STORAGE = 1.25  # the storage gets so many times what its longest recent write took
AT_FIRST = 4.0  # the same as long as no life failed

_PLACES = 192  # of the prior
_MANY_FAILURES = 30  # from here on, the prior no longer matters


@dataclass(frozen=True)
class Failures:
    count: int = 0
    seconds: float = 0.0

    def longer(self, seconds: float) -> Failures:
        return Failures(self.count, self.seconds + max(0.0, seconds))

    @property
    def rate(self) -> float:
        """Expected failures per second: the mean of the posterior, where the prior is as the constants say."""
        if self.count >= _MANY_FAILURES:
            return self.count / max(self.seconds, self.count * SHORTEST_MEAN)
        step = math.log(LONGEST_MEAN / SHORTEST_MEAN) / (_PLACES - 1)
        rates = [math.exp(place * step) / LONGEST_MEAN for place in range(_PLACES)]
        likely = [self.count * math.log(rate) - rate * self.seconds for rate in rates]
        most = max(likely)
        weights = [math.exp(value - most) for value in likely]
        return sum(map(math.prod, zip(rates, weights, strict=True))) / sum(weights)


REASONS: Mapping[Bound, str] = {
    "failures": "the failures to be expected against the cost of saves",
    "overhead": "the share of the time that saves may take",
    "storage": "the time that the storage needs",
}


@dataclass(frozen=True)
class SaveTimes:
    stall_seconds: float
    took_seconds: float


@dataclass(frozen=True)
class ChosenInterval:
    seconds: float
    bound: Bound
    failures: Failures
    times: SaveTimes


def choose_interval(times: SaveTimes, failures: Failures, overhead: float) -> ChosenInterval:
    bound: Bound = "failures"
    best = daly(times.stall_seconds, 1 / failures.rate)
    if failures.count == 0 and best < times.stall_seconds / overhead:
        best, bound = times.stall_seconds / overhead, "overhead"
    room = (AT_FIRST if failures.count == 0 else ROOM_FOR_STORAGE) * times.took_seconds
    if best < room:
        best, bound = room, "storage"
    return ChosenInterval(best, bound, failures, times)


def frequency(cycles: int, cycle_seconds: float, wanted: float) -> str:
    """Say how often saves come, next to the ``wanted`` seconds between them, which are seldom whole cycles."""
    return f"every {many(cycles, 'cycle')} of {span(cycle_seconds)} (wanted: every {span(wanted)})"


def daly(stall_seconds: float, mean_seconds: float) -> float:
    """Return the best interval for saves that cost ``stall_seconds`` at a mean time between failures."""
    if stall_seconds <= 0:
        return 0.0
    if stall_seconds >= 2 * mean_seconds:
        return mean_seconds
    part = stall_seconds / (2 * mean_seconds)
    young = math.sqrt(2 * stall_seconds * mean_seconds)
    return max(young * (1 + math.sqrt(part) / 3 + part / 9) - stall_seconds, stall_seconds)


_MOST_LIVES = 64  # the newest; older ones say little about the machines of today


@dataclass(frozen=True)
class History:
    failures: Failures = field(default_factory=Failures)
    interval: Interval | None = None


def read_history(storage: Storage, before: int) -> History:
    """Read the history before an attempt; if the storage fails, a warning says so, and it is that of a new run."""
    try:
        return _read_history(storage, before)
    except StorageError as error:
        _log.warning(
            "could not read the events of earlier attempts, so SaveEvery.auto begins as in a new run: %s", error
        )
        return History()


def _read_history(storage: Storage, before: int) -> History:
    numbers: dict[int, list[int]] = {}
    for attempt, number in segments_of(storage):
        if attempt < before:
            numbers.setdefault(attempt, []).append(number)
    lives = sorted(numbers)[-_MOST_LIVES:]
    # The first file of a life tells how it began, the last ones how it ended and what was chosen last; a supervisor may
    # have added some.
    places = [(life, number) for life in lives for number in sorted({numbers[life][0], *numbers[life][-4:]})]
    files = read_segments(storage, Documents(storage), places)
    count, seconds, interval = 0, 0.0, None
    for attempt in lives:
        events = [event for segment in files.segments if segment.header.attempt == attempt for event in segment.events]
        life = life_of(attempt, events)
        count += life.has_failed
        seconds += life.exposed_seconds
        interval = life.intervals[-1] if life.intervals else interval
    return History(Failures(count, seconds), interval)
