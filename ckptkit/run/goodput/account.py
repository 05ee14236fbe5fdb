"""Puts every second of a run into one class: training that counted, training done again, and what else there was.

Guarantees: the seconds of a run add up to the time from its first life's birth to the last recorded moment. Within a
life, and between lives of one boot, a clock counts that nobody sets; only between machines or boots, two clocks of the
day are compared. Of a life that nobody watched and that did not record its end, the time after its last event is
``unseen``: it may have been training that was lost. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from ckptkit.format.events import LifeEnded, PhaseName
from ckptkit.run.goodput.lives import FAILED, Life, Moment, between, seconds_of

Class = Literal["trained", "repeated", "saving", "starting", "evaluating", "storage", "hung", "down", "unseen", "rest"]
CLASSES: tuple[Class, ...] = get_args(Class)

_CLASS_OF: Mapping[PhaseName, Class] = {
    "starting": "starting",
    "restoring": "starting",
    "replaying": "starting",
    "first_step": "starting",
    "training": "trained",
    "evaluating": "evaluating",
    "saving": "saving",
    "storage": "storage",
    "ended": "rest",
}
_GIVES_UP: tuple[Class, ...] = ("repeated", "rest", "storage", "trained")  # in this order, where two lives overlap
_DEATHS = {"finished", "preempted", "interrupted", "complete"}  # causes that are none


@dataclass(frozen=True)
class LifeAccount:
    """Holds what the seconds of one life went to, and what lay before it.

    Attributes:
        attempt: The attempt that it began; None if it died before.
        how: How it ended: `ckptkit run`'s cause, or what it recorded itself; None if neither is known.
        seconds: By class; ``down`` and ``unseen`` lie before it.
        phases: Seconds of the life by phase, of which ``starting`` is made up.
        is_watched: Whether `ckptkit run` saw its end, so that nothing is missing.
        is_known: Whether its end is known; otherwise it lived at least so long.
    """

    attempt: int | None
    how: str | None
    seconds: Mapping[Class, float]
    phases: Mapping[str, float]
    is_watched: bool
    is_known: bool


@dataclass(frozen=True)
class Account:
    """Holds what the seconds of a run went to.

    Attributes:
        lives: Every life, in order.
        is_rough: Whether clocks of the day were compared, or events of an older version lack the phases.
    """

    lives: Sequence[LifeAccount]
    is_rough: bool = False

    @property
    def totals(self) -> dict[Class, float]:
        """Seconds by class, of all lives."""
        return {one: sum(life.seconds.get(one, 0.0) for life in self.lives) for one in CLASSES}

    @property
    def seconds(self) -> float:
        """Seconds from the first life's birth to the last recorded moment."""
        return sum(self.totals.values())

    @property
    def share(self) -> float:
        """Share of training that counted."""
        return self.totals["trained"] / self.seconds if self.seconds else 0.0

    @property
    def is_lower_bound(self) -> bool:
        """Whether more may have been done again: a life ended that nobody watched."""
        return self.totals["unseen"] > 0

    @property
    def undisturbed_seconds(self) -> float:
        """Seconds that the same training would have taken in one life."""
        again = sum(life.seconds.get("starting", 0.0) for life in self.lives[1:])
        lost: tuple[Class, ...] = ("repeated", "hung", "down", "unseen")
        return self.seconds - again - sum(self.totals[one] for one in lost)


@dataclass(eq=False)
class _Span:
    """Holds one life while the account is made.

    Attributes:
        life: What its events tell; None if it died before it began an attempt.
        watched: What `ckptkit run` tells.
        start: Its birth.
        end: Its last known moment.
        boot: Boot of its host.
        phases: Its seconds by phase.
        seconds: The same by class.
    """

    life: Life | None
    watched: LifeEnded | None
    start: Moment
    end: Moment
    boot: str | None
    phases: dict[str, float]
    seconds: dict[Class, float] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        return self.watched is not None or (self.life is not None and self.life.how is not None)


def account_of(lives: Sequence[Life]) -> Account:
    """Return the account of ``lives``, which are ordered by attempt."""
    spans = [span for life in lives for span in _spans(life)]
    kept: int | None = None
    for span in reversed(spans):
        _classify(span, kept, is_last=span is spans[-1])
        if span.life is not None and span.life.from_batches is not None:
            kept = span.life.from_batches if kept is None else min(kept, span.life.from_batches)
    rough = any(_lacks_phases(span) for span in spans)
    told = [span for span in spans if span.start != Moment()]
    for one, other in pairwise(told):
        between_them = spans[spans.index(one) + 1 : spans.index(other)]
        rough = _bridge(one, other, is_seen=one.is_known and not between_them) or rough
    return Account([_told(span) for span in spans], rough)


def _spans(life: Life) -> Iterator[_Span]:
    """Yield the life of an attempt, and those after it that died before they began one."""
    own = next((one for one in life.watched if one.restored_step is not None), None)
    if own is not None:
        start = Moment(life.born.uptime, seconds_of(own.began_at))
        end = Moment(None if start.uptime is None else start.uptime + own.seconds, seconds_of(own.at))
        yield _Span(life, own, start, end, life.boot, dict(own.phases))
    else:
        yield _Span(life, None, life.born, life.seen, life.boot, _phases_of(life))
    for one in life.watched:
        if one is not own:
            end = Moment(None, seconds_of(one.at))
            yield _Span(None, one, Moment(None, seconds_of(one.began_at)), end, None, dict(one.phases))


def _phases_of(life: Life) -> dict[str, float]:
    if life.spent is not None:
        return {str(name): seconds for name, seconds in life.spent.items()}
    stall = min(sum(one.stall_seconds for one in life.taken), life.seconds)
    return {"training": life.seconds - stall, "saving": stall}


def _classify(span: _Span, kept: int | None, *, is_last: bool) -> None:
    """Put the phases of a life into classes; ``kept`` is the least that later lives continued from."""
    found: dict[Class, float] = {}
    phases, watched = dict(span.phases), span.watched
    if watched is not None and watched.cause == "hang" and watched.silent_phase is not None:
        silent = min(watched.silent_seconds, phases.get(watched.silent_phase, 0.0))
        phases[watched.silent_phase] = phases.get(watched.silent_phase, 0.0) - silent
        found["hung"] = silent
    for name, seconds in phases.items():
        into = _CLASS_OF.get(name, "rest")  # type: ignore[call-overload]
        found[into] = found.get(into, 0.0) + seconds
    training = found.get("trained", 0.0)
    counted = min(training, _counted(span, kept, training, is_last=is_last))
    found["trained"], found["repeated"] = counted, training - counted
    span.seconds = found


def _counted(span: _Span, kept: int | None, training: float, *, is_last: bool) -> float:
    """Return the seconds of training that no later life did again."""
    life, watched = span.life, span.watched
    if life is None:
        return 0.0
    if kept is None:  # nobody has continued yet: what is in no checkpoint will be done again, if the life is over
        lost = _died(span) if is_last else True
        kept = (life.taken[-1].batches if life.taken else life.from_batches or 0) if lost else None
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


def _died(span: _Span) -> bool:
    if span.watched is not None:
        return span.watched.cause not in _DEATHS
    return span.life is not None and span.life.how is not None and span.life.how in FAILED


def _reached(span: _Span) -> int:
    """Return the micro-steps that a life is known to have reached; a killed one may have reached more."""
    known = span.life.to_batches if span.life is not None else None
    if span.watched is not None and span.watched.last_step is not None:
        return max(known or 0, span.watched.last_step)
    if span.life is not None and span.life.how is None:
        return (known or 0) + 1
    return known or 0


def _lacks_phases(span: _Span) -> bool:
    life = span.life
    return life is not None and life.spent is None and span.watched is None and life.seconds > 0


def _bridge(one: _Span, other: _Span, *, is_seen: bool) -> bool:
    """Add what lies between two lives to the later one; return whether two clocks of the day had to be compared.

    Unless ``is_seen``, nobody knows when the first one ended, or another one lived between them and left no event.
    """
    gap, is_rough = _gap(one, other)
    if gap < 0:
        for name in _GIVES_UP:
            taken = min(-gap, one.seconds.get(name, 0.0))
            one.seconds[name] = one.seconds.get(name, 0.0) - taken
            gap += taken
    into: Class = "down" if is_seen else "unseen"
    other.seconds[into] = max(0.0, gap)
    return is_rough


def _gap(one: _Span, other: _Span) -> tuple[float, bool]:
    watched, after = one.watched, other.watched
    if watched is not None and after is not None and watched.supervisor == after.supervisor:
        return after.down_seconds, False
    end, start = one.end, other.start
    if end.uptime is not None and start.uptime is not None and one.boot is not None and one.boot == other.boot:
        return start.uptime - end.uptime, False
    if end.wall is None or start.wall is None:
        return 0.0, True
    return max(0.0, start.wall - end.wall), True


def _told(span: _Span) -> LifeAccount:
    how = span.watched.cause if span.watched is not None else span.life.how if span.life is not None else None
    return LifeAccount(
        attempt=span.life.attempt if span.life is not None else None,
        how=how,
        seconds={name: seconds for name, seconds in span.seconds.items() if seconds > 0},
        phases={name: seconds for name, seconds in span.phases.items() if seconds > 0},
        is_watched=span.watched is not None,
        is_known=span.is_known,
    )
