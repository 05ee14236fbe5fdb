"""Tells from the events of a run what its seconds went to (``docs/goodput.md``).

Nothing is guessed, and the seconds of all classes add up to the time from the first birth to the last recorded moment.
Within a life and a boot, a clock counts that nobody sets. Pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Literal, get_args

from ckptkit.core.text import time_in
from ckptkit.format.events import Began, Ended, Event, How, Interval, LifeEnded, Saved, Spent


@dataclass(frozen=True)
class Moment:
    uptime: float | None = None
    wall: float | None = None


@dataclass(frozen=True)
class CommittedState:
    batches: int
    at: Moment
    spent: Spent
    took_seconds: float
    step: int = 0


@dataclass
class Life:
    attempt: int
    boot: str | None = None
    born: Moment = Moment()
    began: Moment = Moment()
    seen: Moment = Moment()
    spent: Spent = field(default_factory=dict)
    from_batches: int | None = None
    to_batches: int | None = None
    taken: list[CommittedState] = field(default_factory=list)
    how: How | None = None
    intervals: list[Interval] = field(default_factory=list)
    watched: list[LifeEnded] = field(default_factory=list)

    @property
    def exposed_seconds(self) -> float:
        """Seconds from the restore to the last recorded moment, in which a failure costs work."""
        return between(self.began, self.seen) or 0.0

    @property
    def has_failed(self) -> bool:
        """Whether it trained, and then ended without a last save; only for a life that is over."""
        trained = self.to_batches is not None and self.to_batches > (self.from_batches or 0)
        return self.how in (None, "failed") and trained


def life_of(attempt: int, events: Iterable[Event]) -> Life:
    life = Life(attempt)
    for event in events:
        if isinstance(event, Began):
            wall = seconds_of(event.at)
            life.boot, life.spent = event.boot, event.spent or {}
            life.began = life.seen = life.born = Moment(event.uptime_seconds, wall)
            if event.uptime_seconds is not None and event.born_seconds is not None:
                age = max(0.0, event.uptime_seconds - event.born_seconds)
                life.born = Moment(event.born_seconds, None if wall is None else wall - age)
            life.from_batches = life.to_batches = event.progress.batches_delivered
        elif isinstance(event, Saved):
            _save(life, event)
        elif isinstance(event, Interval):
            life.intervals.append(event)
        elif isinstance(event, LifeEnded):
            life.watched.append(event)
        elif isinstance(event, Ended):
            life.how = event.how
            life.seen = Moment(event.uptime_seconds, seconds_of(event.at))
            life.spent, life.to_batches = event.spent or {}, event.progress.batches_delivered
    return life


def _save(life: Life, event: Saved) -> None:
    wall = seconds_of(event.at)
    committed = Moment(event.uptime_seconds, wall)
    at = Moment(event.taken_seconds, None if wall is None else wall - event.took_seconds)
    spent, progress = event.spent or {}, event.progress
    life.taken.append(CommittedState(progress.batches_delivered, at, spent, event.took_seconds, progress.updates))
    life.seen = committed
    life.to_batches = max(life.to_batches or 0, progress.batches_delivered)
    # What follows the taking of the state is training, as far as is known.
    life.spent = {**spent, "training": spent.get("training", 0.0) + (between(at, committed) or 0.0)}


def between(earlier: Moment, later: Moment) -> float | None:
    """Return the seconds from ``earlier`` to ``later`` by the better clock that both have; None if they share none."""
    for begin, end in ((earlier.uptime, later.uptime), (earlier.wall, later.wall)):
        if begin is not None and end is not None:
            return max(0.0, end - begin)
    return None


def seconds_of(text: str) -> float | None:
    at = time_in(text)
    return None if at is None else at.timestamp()


Class = Literal["trained", "repeated", "saving", "starting", "evaluating", "storage", "hung", "down", "unseen", "rest"]


@dataclass(eq=False)
class LifeSpan:
    life: Life | None
    watched: LifeEnded | None
    start: Moment
    end: Moment
    boot: str | None
    phases: Mapping[str, float] | Spent
    command: LifeEnded | None = None
    seconds: dict[Class, float] = field(default_factory=dict)

    @property
    def how(self) -> str | None:
        if self.watched is not None:
            return self.watched.cause
        return self.life.how if self.life is not None else None

    @property
    def attempt(self) -> int | None:
        return self.life.attempt if self.life is not None else None

    @property
    def ran_seconds(self) -> float:
        """Seconds of the life itself, without those between it and the life before."""
        return sum(seconds for name, seconds in self.seconds.items() if name not in ("down", "unseen"))

    @property
    def is_told(self) -> bool:
        return self.start != Moment()

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


def _spans_of(lives: Sequence[Life]) -> list[LifeSpan]:
    events = {(event.supervisor, event.number): event for life in lives for event in life.watched}  # each once
    own = {event.attempt: event for event in events.values() if event.attempt is not None}
    spans = []
    for life in lives:
        if life.attempt in own:
            spans.append(_watched_span(life, own[life.attempt]))
        else:
            span = LifeSpan(life, None, life.born, life.seen, life.boot, life.spent)
            span.command = next((event for event in events.values() if _has_lived_in(span, event)), None)
            spans.append(span)
    for event in events.values():
        if event.attempt is None:
            span = _watched_span(None, event)
            spans.insert(_place(span, spans), span)
    return spans


def _watched_span(life: Life | None, watched: LifeEnded) -> LifeSpan:
    end = Moment(watched.uptime_seconds, seconds_of(watched.at))
    seconds = watched.seconds - watched.earlier_seconds
    start = Moment(*(None if at is None else at - seconds for at in (end.uptime, end.wall)))
    return LifeSpan(life, watched, start, end, watched.boot, watched.phases)


def _has_lived_in(span: LifeSpan, command: LifeEnded) -> bool:
    """Return whether ``command`` is the life in which an attempt lies that was not its last."""
    end, seen = command.uptime_seconds, span.end.uptime  # the birth of a process is known to ten milliseconds only
    if end is None or seen is None or span.boot is None or span.boot != command.boot:
        return False
    return end - command.seconds < seen <= end - command.seconds + command.earlier_seconds


def _place(span: LifeSpan, spans: Sequence[LifeSpan]) -> int:
    """Return the place of a life that began no attempt: after all that are not known to be later."""
    for at in range(len(spans), 0, -1):
        if spans[at - 1].is_told and not _is_later(spans[at - 1], span):
            return at
    return 0


def _is_later(span: LifeSpan, death: LifeSpan) -> bool:
    watched, before = span.watched or span.command, death.watched
    if watched is not None and before is not None and watched.supervisor == before.supervisor:
        return watched.number > before.number
    if span.boot is not None and span.boot == death.boot and None not in (span.start.uptime, death.start.uptime):
        return (span.start.uptime or 0.0) > (death.start.uptime or 0.0)
    if span.start.wall is not None and death.start.wall is not None:
        return span.start.wall > death.start.wall
    return False


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
_NO_DEATHS = {"finished", "preempted", "interrupted", "complete"}  # causes of a life's end


@dataclass(frozen=True)
class Account:
    lives: Sequence[LifeSpan]
    is_rough: bool = False

    @property
    def totals(self) -> dict[Class, float]:
        return {name: sum(life.seconds.get(name, 0.0) for life in self.lives) for name in CLASSES}

    @property
    def seconds(self) -> float:
        """Seconds of the run in all, those between its lives included."""
        return sum(self.totals.values())

    @property
    def stall_seconds(self) -> float:
        """Seconds in which training waited for saves."""
        return self.totals["saving"]

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
        restarts = sum(life.seconds.get("starting", 0.0) for life in self.lives if life is not first)
        lost: tuple[Class, ...] = ("repeated", "hung", "down", "unseen")
        return self.seconds - restarts - sum(self.totals[name] for name in lost)


def account_of(lives: Sequence[Life]) -> Account:
    spans = _spans_of(lives)
    last = next((span for span in reversed(spans) if span.life is not None), None)
    kept: int | None = None  # the least that later lives continued from
    for span in reversed(spans):
        _classify(span, kept, is_last=span is last)
        if span.from_batches is not None:
            kept = span.from_batches if kept is None else min(kept, span.from_batches)
    is_rough = False
    for earlier, later in pairwise(span for span in spans if span.is_told):
        # Others lived between them and left no event, or nobody knows when the earlier life ended.
        is_unseen = earlier.how is None or spans.index(later) - spans.index(earlier) > 1
        in_one_command = earlier.command is not None and earlier.command is (later.command or later.watched)
        is_rough = _bridge(earlier, later, "unseen" if is_unseen else "rest" if in_one_command else "down") or is_rough
    return Account(spans, is_rough)


def _classify(span: LifeSpan, kept: int | None, *, is_last: bool) -> None:
    """Put the phases of a life into classes; ``kept`` is the least that later lives continued from."""
    for name, seconds in span.phases.items():
        into = _CLASS_OF.get(name, "rest")
        span.seconds[into] = span.seconds.get(into, 0.0) + seconds
    training = span.seconds.get("trained", 0.0)
    counted = min(training, _counted(span, kept, training, is_last=is_last))
    span.seconds["trained"], span.seconds["repeated"] = counted, training - counted


def _counted(span: LifeSpan, kept: int | None, training: float, *, is_last: bool) -> float:
    """Return the seconds of training that no later life did again."""
    life, watched = span.life, span.watched
    if life is None:
        return 0.0
    if kept is None:  # nobody has continued yet: what is in no checkpoint will be done again, if the life is over
        has_died = watched.cause not in _NO_DEATHS if watched is not None else life.how == "failed"
        kept = span.committed if has_died or not is_last else None
    if kept is None or kept >= _reached(life, watched):
        return training
    if watched is not None and watched.committed_step is not None and kept >= watched.committed_step:
        return watched.committed_seconds
    before = [taken for taken in life.taken if taken.batches <= kept]
    return before[-1].spent.get("training", 0.0) if before else 0.0


def _reached(life: Life, watched: LifeEnded | None) -> int:
    """Return the micro-steps that a life is known to have reached; a killed one may have reached more."""
    known = life.to_batches or 0
    if watched is not None and watched.last_step is not None:
        return max(known, watched.last_step)
    return known + (life.how is None)


def _bridge(earlier: LifeSpan, later: LifeSpan, into: Class) -> bool:
    """Add what lies between two lives to the later one; return whether two clocks of the day had to be compared."""
    gap, is_rough = _gap(earlier, later)
    if gap < 0:
        for name in _GIVES_UP:
            taken = min(-gap, earlier.seconds.get(name, 0.0))
            earlier.seconds[name] = earlier.seconds.get(name, 0.0) - taken
            gap += taken
    later.seconds[into] = later.seconds.get(into, 0.0) + max(0.0, gap)
    return is_rough


def _gap(earlier: LifeSpan, later: LifeSpan) -> tuple[float, bool]:
    end, start = earlier.end, later.start
    if end.uptime is not None and start.uptime is not None and earlier.boot is not None and earlier.boot == later.boot:
        return start.uptime - end.uptime, False
    watched, after = earlier.watched, later.watched
    if watched is not None and after is not None and watched.supervisor == after.supervisor:
        return after.down_seconds + after.earlier_seconds, False
    if end.wall is None or start.wall is None:
        return 0.0, True
    return max(0.0, start.wall - end.wall), True


_FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Alternative:
    interval_seconds: float
    saving_seconds: float
    lost_seconds: float
    is_possible: bool

    @property
    def cost_seconds(self) -> float:
        return self.saving_seconds + self.lost_seconds


def alternatives(lives: Sequence[Life]) -> list[Alternative]:
    """Return what half of the run's interval, the interval itself and double of it cost; empty if it is not known."""
    states = [taken for life in lives for taken in life.taken]
    trained_at = [[taken.spent.get("training", 0.0) for taken in life.taken] for life in lives]
    gaps = [later - earlier for at in trained_at for earlier, later in pairwise(at) if later > earlier]
    if not gaps:
        return []
    interval, stall = median(gaps), sum(life.spent.get("saving", 0.0) for life in lives) / len(states)
    took = fmean(taken.took_seconds for taken in states)
    trained = [life.spent.get("training", 0.0) for life in lives]
    died = [seconds for life, seconds in zip(lives, trained, strict=True) if life.has_failed]
    return [
        Alternative(
            interval_seconds=factor * interval,
            saving_seconds=sum(trained) / (factor * interval) * stall,
            lost_seconds=sum(lost_seconds(seconds, factor * interval, took) for seconds in died),
            is_possible=factor * interval >= took,
        )
        for factor in _FACTORS
    ]


def lost_seconds(trained_seconds: float, interval: float, took_seconds: float) -> float:
    """Return the expected seconds of work that a death destroys after ``trained_seconds`` of a life."""
    return min(trained_seconds, interval / 2 + took_seconds)
