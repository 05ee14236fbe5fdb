"""Lays the lives of a run out in time: those that began an attempt, and those that died before.

Guarantees: spans are in the order in which they lived, as far as a clock or a supervisor tells. An attempt that
``ckptkit run`` saw to its end is told by what that saw, any other by its own events. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ckptkit.format.events import LifeEnded
from ckptkit.run.goodput.lives import Life, Moment, seconds_of

Class = Literal["trained", "repeated", "saving", "starting", "evaluating", "storage", "hung", "down", "unseen", "rest"]


@dataclass(eq=False)
class Span:
    """Holds one life while its account is made."""

    life: Life | None
    watched: LifeEnded | None
    start: Moment
    end: Moment
    boot: str | None
    phases: dict[str, float]
    command: LifeEnded | None = None
    seconds: dict[Class, float] = field(default_factory=dict)

    @property
    def is_told(self) -> bool:
        return self.start != Moment()

    @property
    def is_known(self) -> bool:
        """Whether its end is known."""
        return self.watched is not None or (self.life is not None and self.life.how is not None)

    @property
    def from_batches(self) -> int | None:
        """Micro-steps in what it continued from; None if it began no attempt, or is not told of."""
        if self.life is not None and self.life.from_batches is not None:
            return self.life.from_batches
        return None if self.watched is None else self.watched.restored_step

    @property
    def committed(self) -> int:
        """Micro-steps in the newest state of it that is stored."""
        taken = self.life.taken if self.life is not None else ()
        seen = None if self.watched is None else self.watched.committed_step
        return max(taken[-1].batches if taken else 0, seen or 0, self.from_batches or 0)

    def shares_process(self, other: Span) -> bool:
        """Return whether this attempt and a later one began in one life under `ckptkit run`."""
        return self.command is not None and self.command is (other.command or other.watched)


def spans_of(lives: Sequence[Life]) -> list[Span]:
    events = {(one.supervisor, one.number): one for life in lives for one in life.watched}  # each once
    own = {one.attempt: one for one in events.values() if one.attempt is not None}
    spans = [_span_of(life, own.get(life.attempt), events.values()) for life in lives]
    for one in events.values():
        if one.attempt is None:
            span = _watched_span(None, one)
            spans.insert(_place(span, spans), span)
    return spans


def _span_of(life: Life, own: LifeEnded | None, events: Iterable[LifeEnded]) -> Span:
    if own is not None:
        return _watched_span(life, own)
    span = Span(life, None, life.born, life.seen, life.boot, _phases_of(life))
    span.command = next((one for one in events if _has_lived_in(span, one)), None)
    return span


def _watched_span(life: Life | None, watched: LifeEnded) -> Span:
    end = Moment(watched.uptime_seconds, seconds_of(watched.at))
    seconds = watched.seconds - watched.earlier_seconds
    start = Moment(*(None if one is None else one - seconds for one in (end.uptime, end.wall)))
    if end.uptime is None and life is not None and life.born.uptime is not None:
        start, end = Moment(life.born.uptime, start.wall), Moment(life.born.uptime + seconds, end.wall)
    boot = watched.boot or (life.boot if life is not None else None)
    return Span(life, watched, start, end, boot, dict(watched.phases))


def _has_lived_in(span: Span, one: LifeEnded) -> bool:
    """Return whether ``one`` is the life in which an attempt lies that was not its last."""
    end, seen = one.uptime_seconds, span.end.uptime  # the birth of a process is known to ten milliseconds only
    if end is None or seen is None or span.boot is None or span.boot != one.boot:
        return False
    return end - one.seconds < seen <= end - one.seconds + one.earlier_seconds


def _phases_of(life: Life) -> dict[str, float]:
    if life.spent is not None:
        return {str(name): seconds for name, seconds in life.spent.items()}
    stall = min(sum(one.stall_seconds for one in life.taken), life.seconds)
    return {"training": life.seconds - stall, "saving": stall}


def _place(span: Span, spans: Sequence[Span]) -> int:
    """Return the place of a life that began no attempt: after all that are not known to be later."""
    for at in range(len(spans), 0, -1):
        if spans[at - 1].is_told and not _is_later(spans[at - 1], span):
            return at
    return 0


def _is_later(one: Span, other: Span) -> bool:
    watched, before = one.watched or one.command, other.watched
    if watched is not None and before is not None and watched.supervisor == before.supervisor:
        return watched.number > before.number
    if one.boot is not None and one.boot == other.boot and None not in (one.start.uptime, other.start.uptime):
        return (one.start.uptime or 0.0) > (other.start.uptime or 0.0)
    if one.start.wall is not None and other.start.wall is not None:
        return one.start.wall > other.start.wall
    return False
