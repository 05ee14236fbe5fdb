"""Holds the history of a run as values: its attempts, and what each of them saved, lost and recorded.

Guarantees: nothing here is verified, and no two clocks are compared to order anything: attempts are ordered by number,
and times are those that processes recorded for display. Unknown values are None. Pure values, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Literal

from ckptkit.core.text import ENDS
from ckptkit.format.events import How, Interval, Point
from ckptkit.run.goodput import Account, Alternative, Life, account_of, alternatives


@dataclass(frozen=True)
class Removal:
    """Describes a checkpoint that retention removed.

    Attributes:
        checkpoint: Its name.
        step: Its optimizer steps.
        at: When it was removed.
        after: The checkpoint whose commit preceded the removal.
    """

    checkpoint: str
    step: int | None
    at: datetime | None
    after: str


@dataclass(frozen=True)
class Save:
    """Describes a committed checkpoint.

    Attributes:
        checkpoint: Its name.
        step: Its optimizer steps; None if its manifest cannot be read.
        epoch: Whole epochs before it.
        at: When it was committed.
        size_bytes: Bytes written for it; if no event reports it, the size of all that belongs to it.
        took_seconds: From the save call to the commit.
        stall_seconds: Time that training waited.
        is_there: Whether it still exists.
        problem: Why it cannot be used.
    """

    checkpoint: str
    step: int | None
    epoch: int | None
    at: datetime | None
    size_bytes: int | None
    took_seconds: float | None = None
    stall_seconds: float | None = None
    is_there: bool = True
    problem: str | None = None


@dataclass(frozen=True)
class Failure:
    """Describes a failed save.

    Attributes:
        checkpoint: Its intended name.
        step: Optimizer steps at the save.
        at: When it failed.
        error: Class of the error.
        message: First line of its message.
    """

    checkpoint: str
    step: int
    at: datetime | None
    error: str
    message: str


@dataclass
class Attempt:
    """Holds the history of one attempt of the training job.

    Attributes:
        number: From 1.
        host: Where it ran.
        began_at: When it began.
        seen_at: Time of its last known activity.
        parent: The checkpoint that it continued from.
        branch: The checkpoint that the user named for it.
        from_step: Optimizer steps when it began.
        to_step: The highest known number of optimizer steps.
        world_size: Ranks.
        how: How it ended; None if it did not record that.
        error: Class of the error that ended it.
        message: First line of its message.
        cause: Why it ended, as `ckptkit run` found; None if that did not watch it.
        cause_message: The same for people.
        has_events: Whether it recorded events; otherwise only its checkpoints tell of it.
        tells_exit: Whether it would have recorded that its program ended without closing the manager.
        redone_from: Optimizer steps from which a later attempt repeated its work; None if none did.
        skipped_saves: Saves that were due while another one was written.
        left_out: Events that it could not store.
        saves: In order.
        failures: Saves that failed.
        removals: What its retention removed.
        points: Values over optimizer steps.
    """

    number: int
    host: str = ""
    began_at: datetime | None = None
    seen_at: datetime | None = None
    parent: str | None = None
    branch: str | None = None
    from_step: int | None = None
    to_step: int | None = None
    world_size: int | None = None
    how: How | None = None
    error: str | None = None
    message: str = ""
    cause: str | None = None
    cause_message: str = ""
    has_events: bool = False
    tells_exit: bool = False
    redone_from: int | None = None
    skipped_saves: int = 0
    left_out: int = 0
    saves: list[Save] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """Seconds from its begin to its last known activity."""
        if self.began_at is None or self.seen_at is None:
            return None
        return max(0.0, (self.seen_at - self.began_at).total_seconds())

    @property
    def ended(self) -> str | None:
        """How it ended, for people; None if it may still be running."""
        if self.how is not None:
            return ENDS[self.how]
        return None if self.cause is None else self.cause

    def see(self, at: datetime | None, step: int | None = None) -> None:
        """Record activity at that time and step."""
        if at is not None:
            self.seen_at = at if self.seen_at is None else max(self.seen_at, at)
        if step is not None:
            self.to_step = step if self.to_step is None else max(self.to_step, step)


@dataclass(frozen=True)
class Problem:
    """Describes something at the root that cannot be read as what it should be.

    Attributes:
        key: Key of the file, or name of the checkpoint.
        reason: Why.
    """

    key: str
    reason: str


@dataclass(frozen=True)
class Repeated:
    """Compares what attempts recorded for the optimizer steps that two of them did.

    Attributes:
        same: Steps whose losses and gradient norms are equal to the last digit.
        different: Steps whose losses or gradient norms differ.
    """

    same: Sequence[int] = ()
    different: Sequence[int] = ()


@dataclass(frozen=True)
class RunStory:
    """Holds the history of a run.

    Attributes:
        root: Without credentials.
        run_id: The id in ``run.json``.
        copied_from: Root that it was copied from.
        told_at: When this was read.
        attempts: By number.
        latest: Name of the checkpoint that a start would try first.
        problems: What cannot be read.
        lives: What the events of each attempt tell of its process, for the account.
    """

    root: str
    run_id: str | None
    copied_from: str | None
    told_at: datetime
    attempts: Sequence[Attempt]
    latest: str | None
    problems: Sequence[Problem]
    lives: Sequence[Life] = ()

    @cached_property
    def account(self) -> Account:
        """What the seconds of the run went to."""
        return account_of(self.lives)

    @cached_property
    def alternatives(self) -> Sequence[Alternative]:
        """What half of the interval between saves, the interval itself and double of it cost; empty if not known."""
        return alternatives(self.lives)

    @property
    def interval(self) -> Interval | None:
        """The last choice of `SaveEvery.auto`."""
        return next((one for life in reversed(self.lives) for one in reversed(life.intervals)), None)

    @property
    def last(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]

    @property
    def saves(self) -> Iterator[tuple[Attempt, Save]]:
        """All saves, by attempt."""
        return ((attempt, save) for attempt in self.attempts for save in attempt.saves)

    @property
    def latest_save(self) -> Save | None:
        """The save that made `latest`."""
        return next((save for _, save in self.saves if save.checkpoint == self.latest), None)

    @property
    def step(self) -> int:
        """The highest known number of optimizer steps of the newest attempt."""
        last = self.last
        return max(last.to_step or 0, last.from_step or 0)

    @property
    def epoch(self) -> int | None:
        """Whole epochs at the newest save of the newest attempt that has any."""
        epochs = [save.epoch for _, save in self.saves if save.epoch is not None]
        return epochs[-1] if epochs else None

    @property
    def redone_steps(self) -> int:
        """Optimizer steps done but not part of what the newest attempt continued from; a lower bound."""
        lost, reached = 0, 0
        for attempt in self.attempts:
            begin = attempt.from_step if attempt.from_step is not None else reached
            lost += max(0, reached - begin)
            reached = max(begin, attempt.to_step or 0)
        return lost

    @property
    def stall_seconds(self) -> float:
        """Seconds that training waited, over all saves that recorded it."""
        return sum(save.stall_seconds or 0.0 for _, save in self.saves)

    @property
    def running_seconds(self) -> float:
        """Seconds of all attempts, as far as known."""
        return sum(attempt.seconds or 0.0 for attempt in self.attempts)

    @property
    def gap_seconds(self) -> float:
        """Seconds between attempts, from the last known activity of one to the begin of the next."""
        times = [(one.seen_at, other.began_at) for one, other in pairwise(self.attempts)]
        return sum(max(0.0, (begin - end).total_seconds()) for end, begin in times if end and begin)

    @property
    def repeated(self) -> Repeated:
        """Comparison of the optimizer steps that were done twice."""
        same: list[int] = []
        different: list[int] = []
        known: dict[int, tuple[Point, int | None]] = {}
        for attempt in self.attempts:
            for point in attempt.points:
                if point.cycles != 1 or not {"loss", "gradient_norm"} & point.values.keys():
                    continue
                before, ranks = known.get(point.last, (None, None))
                if before is not None and ranks == attempt.world_size:  # otherwise rank 0 has other batches
                    both = before.values.keys() & point.values.keys() & {"loss", "gradient_norm"}
                    if both:
                        is_same = all(before.values[name] == point.values[name] for name in both)
                        (same if is_same else different).append(point.last)
                known[point.last] = (point, attempt.world_size)
        return Repeated(sorted(same), sorted(different))


Health = Literal["good", "attention", "bad"]


@dataclass(frozen=True)
class Verdict:
    """Rates the run.

    Attributes:
        health: Overall rating.
        headline: In a few words.
        bad: Problems that need action.
        attention: Facts worth knowing.
        good: What went well.
    """

    health: Health
    headline: str
    bad: Sequence[str]
    attention: Sequence[str]
    good: Sequence[str]
