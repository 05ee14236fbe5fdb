"""Holds the history of a run as values, and reads it: its attempts, and what each of them saved, lost and recorded.

What no event tells comes from documents and checkpoints. Nothing is verified. A file that cannot be read as what it
should be becomes a `UnreadableFile` of the story. No two clocks are compared to order anything: attempts are ordered by
number, and times are those that processes recorded for display. Unknown values are None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property

from ckptkit.checkpoint.commit import read_document
from ckptkit.checkpoint.open import decode_manifest
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.core.text import ENDS, escaped, time_in
from ckptkit.core.worker import each_of
from ckptkit.errors import UnusableCheckpointError
from ckptkit.format.documents import MAX_DOCUMENT_BYTES, Manifest, RunDocument
from ckptkit.format.events import (
    Began,
    Ended,
    Event,
    How,
    Interval,
    LeftOut,
    LifeEnded,
    Point,
    Removed,
    Saved,
    SaveFailed,
)
from ckptkit.format.layout import RUN, CheckpointName, attempt_key, parse_segment
from ckptkit.run.catalog import CheckpointInfo, Rows, list_rows
from ckptkit.run.event_log import read_events
from ckptkit.run.goodput import Account, Alternative, Life, account_of, alternatives, life_of
from ckptkit.run.index import Index
from ckptkit.run.ownership import no_checkpoint
from ckptkit.storage import Storage


@dataclass(frozen=True)
class Removal:
    checkpoint: str
    step: int | None  # optimizer steps, here and below
    at: datetime | None
    after: str  # the checkpoint whose commit preceded the removal


@dataclass(frozen=True)
class Save:
    checkpoint: str
    step: int | None  # None if its manifest cannot be read
    epoch: int | None  # whole epochs before it
    at: datetime | None
    size_bytes: int | None  # written for it; if no event reports that, of all that belongs to it
    took_seconds: float | None = None  # from the save call to the commit
    stall_seconds: float | None = None  # in which training waited, also for the save before
    is_there: bool = True
    problem: str | None = None  # why it cannot be used


@dataclass(frozen=True)
class FailedSave:
    checkpoint: str  # its intended name
    step: int
    at: datetime | None
    error: str  # class of the error
    message: str


@dataclass
class Attempt:
    number: int  # from 1
    host: str = ""
    began_at: datetime | None = None
    seen_at: datetime | None = None  # its last known activity
    parent: str | None = None  # the checkpoint that it continued from
    branch: str | None = None  # the checkpoint that the user named for it
    from_step: int | None = None
    to_step: int | None = None  # the highest one that is known
    world_size: int | None = None
    how: How | None = None  # how it ended; None if it did not record that
    error: str | None = None  # class of the error that ended it
    message: str = ""
    cause: str | None = None  # why it ended, as `ckptkit run` found; None if that did not watch it
    cause_message: str = ""
    has_events: bool = False  # otherwise only its checkpoints tell of it
    tells_exit: bool = False  # whether it would have recorded that its program ended without closing the manager
    redone_from: int | None = None  # the step from which a later attempt repeated its work
    skipped_saves: int = 0  # due while another one was written
    left_out: int = 0  # events that it could not store
    saves: list[Save] = field(default_factory=list)
    failures: list[FailedSave] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def ended(self) -> str | None:
        """How it ended, for people; None if it may still be running."""
        if self.how is not None:
            return ENDS[self.how]
        return None if self.cause is None else ENDS.get(self.cause, self.cause)

    def see(self, at: datetime | None, step: int | None = None) -> None:
        """Record activity at that time and step."""
        if at is not None:
            self.seen_at = at if self.seen_at is None else max(self.seen_at, at)
        if step is not None:
            self.to_step = step if self.to_step is None else max(self.to_step, step)


@dataclass(frozen=True)
class UnreadableFile:
    key: str  # of the file, or name of the checkpoint
    reason: str


@dataclass(frozen=True)
class Repeated:
    """Names the optimizer steps that two attempts did, whose losses and gradient norms are equal or not."""

    same: Sequence[int] = ()
    different: Sequence[int] = ()


@dataclass(frozen=True)
class RunStory:
    root: str  # without credentials
    run_id: str | None
    copied_from: str | None
    told_at: datetime  # when this was read
    attempts: Sequence[Attempt]  # by number
    latest: str | None  # the checkpoint that a start would try first
    problems: Sequence[UnreadableFile]
    lives: Sequence[Life] = ()  # what the events of each attempt tell of its process, for the account

    @cached_property
    def account(self) -> Account:
        return account_of(self.lives)

    @cached_property
    def alternatives(self) -> Sequence[Alternative]:
        """What half of the interval between saves, the interval itself and double of it cost; empty if not known."""
        return alternatives(self.lives)

    @property
    def interval(self) -> Interval | None:
        """The last choice of `SaveEvery.auto`."""
        return next((choice for life in reversed(self.lives) for choice in reversed(life.intervals)), None)

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    @property
    def saves(self) -> Iterator[tuple[Attempt, Save]]:
        return ((attempt, save) for attempt in self.attempts for save in attempt.saves)

    @property
    def latest_save(self) -> Save | None:
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
    def repeated(self) -> Repeated:
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


def read_story(storage: Storage, now: datetime) -> RunStory:
    """Return the history of the run at ``storage``, as of ``now``; raise CheckpointNotFoundError if there is none."""
    return _Teller(storage).tell(now)


def time_of(text: str) -> datetime | None:
    """Return the time in a document's text, in UTC; None if it is not a time."""
    at = time_in(text)
    try:
        return at and at.astimezone(timezone.utc)
    except OverflowError:
        return None


class _Teller:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._index = Index(storage)
        self._attempts = {number: Attempt(number) for number in self._index.attempts | self._index.orphans}
        self._problems: list[UnreadableFile] = []

    def tell(self, now: datetime) -> RunStory:
        run: RunDocument | None = None
        try:
            with contextlib.suppress(FileNotFoundError):  # no checkpoint depends on it
                run = read_document(self._storage, RUN, RunDocument)
        except UnusableCheckpointError as error:
            self._problems.append(UnreadableFile(RUN, str(error)))
        files = read_events(self._storage, self._index)
        if not self._attempts and not files.segments and not files.problems:
            raise no_checkpoint(self._storage)
        self._problems.extend(UnreadableFile(key, reason) for key, reason in files.problems.items())
        for number, attempt in sorted(self._attempts.items()):
            try:
                document = self._index.document(number)
            except UnusableCheckpointError as error:
                self._problems.append(UnreadableFile(attempt_key(number), str(error)))
                continue
            attempt.host = document.host
            attempt.parent, attempt.branch = document.parent, document.branch
            attempt.began_at = time_of(document.created_at)
            attempt.see(attempt.began_at)
            self._problems.extend(UnreadableFile(passed.checkpoint, passed.reason) for passed in document.passed_over)
        events: dict[int, list[Event]] = {}
        for segment in files.segments:
            attempt = self._attempts.setdefault(segment.header.attempt, Attempt(segment.header.attempt))
            self._take_in(attempt, segment.events)
            events.setdefault(attempt.number, []).extend(segment.events)
        rows = list_rows(self._storage, None)
        self._merge(rows)
        if not self._attempts:  # all that is left are events that cannot be read
            places = [parse_segment(key.rpartition("/")[2]) for key in files.problems]
            self._attempts = {place[0]: Attempt(place[0]) for place in places if place is not None}
        attempts = [self._attempts[number] for number in sorted(self._attempts)]
        self._place(attempts)
        return RunStory(
            root=escaped(self._storage.url),
            run_id=run.run_id if run is not None else None,
            copied_from=run.copied_from.url if run is not None and run.copied_from is not None else None,
            told_at=now,
            attempts=attempts,
            latest=rows.latest,
            problems=self._problems,
            lives=[life_of(attempt.number, events.get(attempt.number, ())) for attempt in attempts],
        )

    def _take_in(self, attempt: Attempt, events: Iterable[Event]) -> None:
        attempt.has_events = True
        for event in events:
            at = time_of(event.at)
            attempt.see(at)
            if isinstance(event, Began):
                attempt.parent = event.checkpoint
                attempt.from_step, attempt.world_size = event.progress.updates, event.world_size
                attempt.began_at = attempt.began_at or at
                attempt.tells_exit = event.uptime_seconds is not None
                attempt.see(at, event.progress.updates)
            elif isinstance(event, Point):
                attempt.points.append(event)
                attempt.see(at, event.last)
            elif isinstance(event, Saved):
                attempt.saves.append(
                    Save(
                        event.checkpoint,
                        event.progress.updates,
                        event.progress.epoch,
                        at,
                        event.size_bytes,
                        event.took_seconds,
                        event.stall_seconds,
                    )
                )
                attempt.skipped_saves = max(attempt.skipped_saves, event.skipped_saves)
                attempt.see(at, event.progress.updates)
            elif isinstance(event, SaveFailed):
                attempt.failures.append(
                    FailedSave(event.checkpoint, event.progress.updates, at, event.error, event.message)
                )
            elif isinstance(event, Removed):
                attempt.removals.append(Removal(event.checkpoint, None, at, event.after))
            elif isinstance(event, Ended):
                attempt.how, attempt.error, attempt.message = event.how, event.error, event.message
                attempt.see(at, event.progress.updates)
            elif isinstance(event, LifeEnded) and event.attempt == attempt.number:
                attempt.cause, attempt.cause_message = event.cause, event.message
            elif isinstance(event, LeftOut):
                attempt.left_out += event.events

    def _merge(self, rows: Rows) -> None:
        """Add the checkpoints that no event reports, and record which of the others exist."""
        there = {info.name: info.problem for info in rows.shown}
        if rows.problem is not None:
            self._problems.append(UnreadableFile("checkpoints", str(rows.problem)))
        self._problems.extend(UnreadableFile(info.name, info.problem) for info in rows.shown if info.problem)
        recorded = {save.checkpoint for attempt in self._attempts.values() for save in attempt.saves}
        others = [info for info in rows.shown if info.name not in recorded]
        for info, manifest in zip(others, each_of(others, self._manifest), strict=True):
            attempt = self._attempts.setdefault(info.attempt, Attempt(info.attempt))
            progress = info.progress
            save = Save(
                info.name,
                progress.updates if progress is not None else None,
                progress.epoch if progress is not None else None,
                time_of(info.created_at),
                info.size_bytes if progress is not None else None,
                stall_seconds=manifest.cost.stall_seconds if manifest is not None else None,
            )
            attempt.saves.append(save)
            attempt.see(save.at, save.step)
        for attempt in self._attempts.values():
            attempt.saves = [
                replace(save, is_there=save.checkpoint in there, problem=there.get(save.checkpoint))
                for save in attempt.saves
            ]
            attempt.saves.sort(key=_place_of)

    def _manifest(self, info: CheckpointInfo) -> Manifest | None:
        name = CheckpointName.parse(info.name)
        if name is None or info.problem is not None:
            return None
        try:
            key = name.manifest_key
            return reread_if_corrupt(lambda: decode_manifest(self._storage.read(key, MAX_DOCUMENT_BYTES), name))
        except (FileNotFoundError, UnusableCheckpointError):
            return None  # removed or damaged since it was listed

    def _place(self, attempts: list[Attempt]) -> None:
        """Determine where each attempt continued, and whose work it repeated."""
        steps = {save.checkpoint: save.step for attempt in attempts for save in attempt.saves}
        for attempt in attempts:
            attempt.removals = [replace(removal, step=steps.get(removal.checkpoint)) for removal in attempt.removals]
            if attempt.from_step is None and attempt.host:
                attempt.from_step = 0 if attempt.parent is None else steps.get(attempt.parent)
        for attempt in attempts:
            # Did it begin with the last state of a finished training, and do nothing more?
            parent = CheckpointName.parse(attempt.parent or "")
            before = self._attempts.get(parent.attempt) if parent is not None else None
            if before is None or before.how not in ("finished", "complete") or before.to_step != attempt.from_step:
                continue
            trained = attempt.saves or attempt.points or attempt.to_step != attempt.from_step
            if attempt.how in ("closed", "finished") and not trained:
                attempt.how = "complete"
        lowest: int | None = None
        for attempt in reversed(attempts):
            attempt.redone_from = lowest
            if attempt.from_step is not None:
                lowest = attempt.from_step if lowest is None else min(lowest, attempt.from_step)


def _place_of(save: Save) -> tuple[int, int, int]:
    name = CheckpointName.parse(save.checkpoint)
    return (name.cycles, name.micro_step, name.nth_try) if name is not None else (0, 0, 0)
