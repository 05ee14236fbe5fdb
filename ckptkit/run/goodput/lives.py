"""Tells from the events of an attempt how long it lived, what the time went to, and what it committed when.

Guarantees: nothing is guessed. Of a life that did not record its end, only what precedes its last event is told. Times
are those of a clock that nobody sets, where the events have them, else those of the clock of the day. Pure functions,
any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckptkit.core.text import time_in
from ckptkit.format.events import Began, Ended, Event, How, Interval, LifeEnded, Saved, Spent

FAILED: tuple[How | None, ...] = (None, "failed")  # without a last save


@dataclass(frozen=True)
class Moment:
    uptime: float | None = None
    wall: float | None = None


@dataclass(frozen=True)
class Taken:
    """Describes a state that a life committed."""

    batches: int
    at: Moment
    spent: Spent | None
    stall_seconds: float
    took_seconds: float
    step: int = 0


@dataclass
class Life:
    """Holds what is known of the process of one attempt."""

    attempt: int
    boot: str | None = None
    born: Moment = Moment()
    began: Moment = Moment()
    seen: Moment = Moment()
    spent: Spent | None = None
    from_batches: int | None = None
    to_batches: int | None = None
    taken: list[Taken] = field(default_factory=list)
    how: How | None = None
    intervals: list[Interval] = field(default_factory=list)
    watched: list[LifeEnded] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return between(self.born, self.seen) or 0.0

    @property
    def exposed_seconds(self) -> float:
        """Seconds from the restore to the last recorded moment, in which a failure costs work."""
        return between(self.began, self.seen) or 0.0

    @property
    def has_failed(self) -> bool:
        """Whether it trained, and then ended without a last save; only for a life that is over."""
        trained = self.to_batches is not None and self.to_batches > (self.from_batches or 0)
        return self.how in FAILED and trained


def life_of(attempt: int, events: Iterable[Event]) -> Life:
    life = Life(attempt)
    for event in events:
        if isinstance(event, Began):
            _begin(life, event)
        elif isinstance(event, Saved):
            _save(life, event)
        elif isinstance(event, Interval):
            life.intervals.append(event)
        elif isinstance(event, LifeEnded):
            life.watched.append(event)
        elif isinstance(event, Ended):
            life.how = event.how
            life.seen = Moment(event.uptime_seconds, seconds_of(event.at))
            life.spent, life.to_batches = event.spent, event.progress.batches_delivered
    return life


def _begin(life: Life, event: Began) -> None:
    wall = seconds_of(event.at)
    life.boot = event.boot
    life.began = life.seen = life.born = Moment(event.uptime_seconds, wall)
    if event.uptime_seconds is not None and event.born_seconds is not None:
        age = max(0.0, event.uptime_seconds - event.born_seconds)
        life.born = Moment(event.born_seconds, None if wall is None else wall - age)
    life.spent = event.spent
    life.from_batches = life.to_batches = event.progress.batches_delivered


def _save(life: Life, event: Saved) -> None:
    wall = seconds_of(event.at)
    committed = Moment(event.uptime_seconds, wall)
    at = Moment(event.taken_seconds, None if wall is None else wall - event.took_seconds)
    costs = event.stall_seconds, event.took_seconds
    life.taken.append(Taken(event.progress.batches_delivered, at, event.spent, *costs, event.progress.updates))
    life.seen = committed
    life.to_batches = max(life.to_batches or 0, event.progress.batches_delivered)
    if event.spent is not None:  # what follows the taking of the state is training, as far as is known
        life.spent = {**event.spent, "training": event.spent.get("training", 0.0) + (between(at, committed) or 0.0)}


def between(one: Moment, other: Moment) -> float | None:
    """Return the seconds from ``one`` to ``other`` by the better clock that both have; None if they share none."""
    if one.uptime is not None and other.uptime is not None:
        return max(0.0, other.uptime - one.uptime)
    if one.wall is not None and other.wall is not None:
        return max(0.0, other.wall - one.wall)
    return None


def seconds_of(text: str) -> float | None:
    at = time_in(text)
    return None if at is None else at.timestamp()
