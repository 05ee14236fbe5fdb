"""Reads from the events of earlier attempts what `SaveEvery.auto` needs: their failures, and the last interval.

Guarantees: reads a bounded number of files, however long the run is, and only of attempts that this one continues or
has replaced. What cannot be read is left out. Any single thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ckptkit.format.events import Interval
from ckptkit.format.layout import EVENTS, parse_segment
from ckptkit.run.event_log import read_segments
from ckptkit.run.goodput.interval import Failures
from ckptkit.run.goodput.lives import life_of
from ckptkit.run.index import Documents
from ckptkit.storage import Storage

_MOST_LIVES = 64  # the newest; older ones say little about the machines of today


@dataclass(frozen=True)
class History:
    """Holds what earlier attempts recorded."""

    failures: Failures = field(default_factory=Failures)
    interval: Interval | None = None


NO_HISTORY = History()


def read_history(storage: Storage, before: int) -> History:
    numbers: dict[int, list[int]] = {}
    for file in storage.list(EVENTS).files:
        place = parse_segment(file)
        if place is not None and place[0] < before:
            numbers.setdefault(place[0], []).append(place[1])
    lives = sorted(numbers)[-_MOST_LIVES:]
    # The first file of a life tells how it began, the last ones how it ended and what was chosen last; a supervisor may
    # have added some.
    places = [(life, number) for life in lives for number in sorted({min(numbers[life]), *sorted(numbers[life])[-4:]})]
    files = read_segments(storage, Documents(storage), places)
    count, seconds, interval = 0, 0.0, None
    for attempt in lives:
        events = [event for one in files.segments if one.header.attempt == attempt for event in one.events]
        life = life_of(attempt, events)
        count += life.has_failed
        seconds += life.exposed_seconds
        interval = life.intervals[-1] if life.intervals else interval
    return History(Failures(count, seconds), interval)
