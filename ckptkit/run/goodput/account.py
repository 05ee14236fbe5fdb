"""Puts every second of a run into one class: training that counted, training done again, and what else there was.

Guarantees: the seconds of a run add up to the time from its first life's birth to the last recorded moment. Within a
life, and between lives of one boot, a clock counts that nobody sets; only between machines or boots, two clocks of the
day are compared. Of a life that nobody watched and that did not record its end, the time after its last event is
``unseen``: it may have been training that was lost. What a process did with other runs is not in the account of this
one. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from ckptkit.run.goodput.lives import FAILED, Life, between
from ckptkit.run.goodput.spans import Class, Span, spans_of

CLASSES: tuple[Class, ...] = get_args(Class)

_CLASS_OF: Mapping[str, Class] = {
    "starting": "starting",
    "restoring": "starting",
    "replaying": "starting",
    "first_step": "starting",
    "training": "trained",
    "evaluating": "evaluating",
    "saving": "saving",
    "storage": "storage",
    "ended": "rest",
    "hung": "hung",
    "dead": "down",
}
_GIVES_UP: tuple[Class, ...] = (  # in this order, where two lives overlap
    *("repeated", "rest", "storage", "trained", "saving", "evaluating", "hung", "starting", "down", "unseen"),
)
_DEATHS = {"finished", "preempted", "interrupted", "complete"}  # causes that are none


@dataclass(frozen=True)
class LifeAccount:
    """Holds what the seconds of one life went to, and what lay before it."""

    attempt: int | None
    how: str | None
    seconds: Mapping[Class, float]
    phases: Mapping[str, float]
    is_watched: bool
    is_known: bool


@dataclass(frozen=True)
class Account:
    """Holds what the seconds of a run went to."""

    lives: Sequence[LifeAccount]
    is_rough: bool = False

    @property
    def totals(self) -> dict[Class, float]:
        return {one: sum(life.seconds.get(one, 0.0) for life in self.lives) for one in CLASSES}

    @property
    def seconds(self) -> float:
        """Seconds from the first life's birth to the last recorded moment."""
        return sum(self.totals.values())

    @property
    def share(self) -> float:
        return self.totals["trained"] / self.seconds if self.seconds else 0.0

    @property
    def is_lower_bound(self) -> bool:
        """Whether more may have been repeated, because a life ended that no supervisor watched."""
        return self.totals["unseen"] > 0

    @property
    def undisturbed_seconds(self) -> float:
        """Seconds that the same training would have taken in one life."""
        first = next((life for life in self.lives if life.attempt is not None), None)
        again = sum(life.seconds.get("starting", 0.0) for life in self.lives if life is not first)
        lost: tuple[Class, ...] = ("repeated", "hung", "down", "unseen")
        return self.seconds - again - sum(self.totals[one] for one in lost)


def account_of(lives: Sequence[Life]) -> Account:
    spans = spans_of(lives)
    last = next((span for span in reversed(spans) if span.life is not None), None)
    kept: int | None = None
    for span in reversed(spans):
        _classify(span, kept, is_last=span is last)
        if span.from_batches is not None:
            kept = span.from_batches if kept is None else min(kept, span.from_batches)
    rough = any(_lacks_phases(span) for span in spans)
    told = [span for span in spans if span.is_told]
    for one, other in pairwise(told):
        between_them = spans[spans.index(one) + 1 : spans.index(other)]
        rough = _bridge(one, other, _class_between(one, other, is_seen=not between_them)) or rough
    return Account([_told(span) for span in spans], rough)


def _classify(span: Span, kept: int | None, *, is_last: bool) -> None:
    """Put the phases of a life into classes; ``kept`` is the least that later lives continued from."""
    found: dict[Class, float] = {}
    for name, seconds in span.phases.items():
        into = _CLASS_OF.get(name, "rest")
        found[into] = found.get(into, 0.0) + seconds
    training = found.get("trained", 0.0)
    counted = min(training, _counted(span, kept, training, is_last=is_last))
    found["trained"], found["repeated"] = counted, training - counted
    span.seconds = found


def _counted(span: Span, kept: int | None, training: float, *, is_last: bool) -> float:
    """Return the seconds of training that no later life did again."""
    life, watched = span.life, span.watched
    if life is None:
        return 0.0
    if kept is None:  # nobody has continued yet: what is in no checkpoint will be done again, if the life is over
        kept = span.committed if _died(span) or not is_last else None
    if kept is None or kept >= _reached(span):
        return training
    if watched is not None and watched.committed_step is not None and kept >= watched.committed_step:
        return watched.committed_seconds
    before = [one for one in life.taken if one.batches <= kept]
    if not before:
        return 0.0
    spent = before[-1].spent
    if spent is not None:
        return spent.get("training", 0.0)
    return (between(life.began, before[-1].at) or 0.0) - sum(one.stall_seconds for one in before)


def _died(span: Span) -> bool:
    if span.watched is not None:
        return span.watched.cause not in _DEATHS
    return span.life is not None and span.life.how is not None and span.life.how in FAILED


def _reached(span: Span) -> int:
    """Return the micro-steps that a life is known to have reached; a killed one may have reached more."""
    known = span.life.to_batches if span.life is not None else None
    if span.watched is not None and span.watched.last_step is not None:
        return max(known or 0, span.watched.last_step)
    if span.life is not None and span.life.how is None:
        return (known or 0) + 1
    return known or 0


def _lacks_phases(span: Span) -> bool:
    life = span.life
    return life is not None and life.spent is None and span.watched is None and life.seconds > 0


def _class_between(one: Span, other: Span, *, is_seen: bool) -> Class:
    """Return what lies between two lives."""
    if not is_seen or not one.is_known:
        return "unseen"
    return "rest" if one.shares_process(other) else "down"


def _bridge(one: Span, other: Span, into: Class) -> bool:
    """Add what lies between two lives to the later one; return whether two clocks of the day had to be compared."""
    gap, is_rough = _gap(one, other)
    if gap < 0:
        for name in _GIVES_UP:
            taken = min(-gap, one.seconds.get(name, 0.0))
            one.seconds[name] = one.seconds.get(name, 0.0) - taken
            gap += taken
    other.seconds[into] = other.seconds.get(into, 0.0) + max(0.0, gap)
    return is_rough


def _gap(one: Span, other: Span) -> tuple[float, bool]:
    end, start = one.end, other.start
    if end.uptime is not None and start.uptime is not None and one.boot is not None and one.boot == other.boot:
        return start.uptime - end.uptime, False
    watched, after = one.watched, other.watched
    if watched is not None and after is not None and watched.supervisor == after.supervisor:
        return after.down_seconds + after.earlier_seconds, False
    if end.wall is None or start.wall is None:
        return 0.0, True
    return max(0.0, start.wall - end.wall), True


def _told(span: Span) -> LifeAccount:
    how = span.watched.cause if span.watched is not None else span.life.how if span.life is not None else None
    return LifeAccount(
        attempt=span.life.attempt if span.life is not None else None,
        how=how,
        seconds={name: seconds for name, seconds in span.seconds.items() if seconds > 0},
        phases={name: seconds for name, seconds in span.phases.items() if seconds > 0},
        is_watched=span.watched is not None,
        is_known=span.is_known,
    )
