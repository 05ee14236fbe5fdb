"""Reads the history of a run from its events; for an attempt without events, from its document and its checkpoints.

Guarantees: reads and never writes; a file that cannot be read as what it should be becomes a `Problem` of the story,
and the rest is read. Any single thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timezone

from ckptkit.checkpoint.commit import read_document, reread_if_corrupt
from ckptkit.checkpoint.open import decode_manifest
from ckptkit.core.text import escaped, time_in
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, UnusableCheckpointError
from ckptkit.format.documents import MAX_DOCUMENT_BYTES, Manifest, RunDocument
from ckptkit.format.events import Began, Ended, Event, LeftOut, LifeEnded, Point, Removed, Saved, SaveFailed
from ckptkit.format.layout import RUN, CheckpointName, attempt_key, parse_segment
from ckptkit.run.catalog import CheckpointInfo, Rows, list_rows
from ckptkit.run.event_log import read_events
from ckptkit.run.goodput import life_of
from ckptkit.run.index import Index
from ckptkit.storage import Storage
from ckptkit.tools.report.history import Attempt, Failure, Problem, Removal, RunStory, Save


def read_story(storage: Storage, now: datetime) -> RunStory:
    """Return the history of the run at ``storage``.

    Args:
        storage: The run root.
        now: When this is read.

    Raises:
        CheckpointNotFoundError: If there is no run at all.
        StorageError: If the storage failed.
    """
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
        self._problems: list[Problem] = []

    def tell(self, now: datetime) -> RunStory:
        run = self._run()
        files = read_events(self._storage, self._index)
        if not self._attempts and not files.segments and not files.problems:
            raise CheckpointNotFoundError(
                f"there is no run at {self._storage.url}: neither attempts nor checkpoints. Check "
                "the path; it is what CheckpointCallback(...) or CheckpointManager(...) was given"
            )
        self._problems.extend(Problem(key, reason) for key, reason in files.problems.items())
        for number in sorted(self._attempts):
            self._read_document(self._attempts[number])
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
        copied = run.copied_from.url if run is not None and run.copied_from is not None else None
        return RunStory(
            root=escaped(self._storage.url),
            run_id=run.run_id if run is not None else None,
            copied_from=copied,
            told_at=now,
            attempts=attempts,
            latest=rows.latest,
            problems=self._problems,
            lives=[life_of(one.number, events.get(one.number, ())) for one in attempts],
        )

    def _run(self) -> RunDocument | None:
        try:
            return read_document(self._storage, RUN, RunDocument)
        except FileNotFoundError:
            return None  # no checkpoint depends on it
        except UnusableCheckpointError as error:
            self._problems.append(Problem(RUN, str(error)))
            return None

    def _read_document(self, attempt: Attempt) -> None:
        try:
            document = self._index.document(attempt.number)
        except UnusableCheckpointError as error:
            self._problems.append(Problem(attempt_key(attempt.number), str(error)))
            return
        attempt.host = document.host
        attempt.parent, attempt.branch = document.parent, document.branch
        attempt.began_at = time_of(document.created_at)
        attempt.see(attempt.began_at)
        self._problems.extend(Problem(one.checkpoint, one.reason) for one in document.passed_over)

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
                attempt.saves.append(_save_of(event, at))
                attempt.skipped_saves = max(attempt.skipped_saves, event.skipped_saves)
                attempt.see(at, event.progress.updates)
            elif isinstance(event, SaveFailed):
                failed = Failure(event.checkpoint, event.progress.updates, at, event.error, event.message)
                attempt.failures.append(failed)
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
        there = {info.name: info for info in rows.shown}
        if rows.problem is not None:
            self._problems.append(Problem("checkpoints", str(rows.problem)))
        self._problems.extend(Problem(info.name, info.problem) for info in rows.shown if info.problem)
        told = {save.checkpoint for attempt in self._attempts.values() for save in attempt.saves}
        untold = [info for info in rows.shown if info.name not in told]
        for info, manifest in zip(untold, each_of(untold, self._manifest), strict=True):
            attempt = self._attempts.setdefault(info.attempt, Attempt(info.attempt))
            save = _save_from(info, manifest)
            attempt.saves.append(save)
            attempt.see(save.at, save.step)
        for attempt in self._attempts.values():
            attempt.saves = [_now(save, there.get(save.checkpoint)) for save in attempt.saves]
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
            attempt.removals = [
                Removal(one.checkpoint, steps.get(one.checkpoint), one.at, one.after) for one in attempt.removals
            ]
            if attempt.from_step is None and attempt.host:
                attempt.from_step = 0 if attempt.parent is None else steps.get(attempt.parent)
        for attempt in attempts:
            if attempt.how in ("closed", "finished") and self._found_nothing_to_do(attempt):
                attempt.how = "complete"
        lowest: int | None = None
        for attempt in reversed(attempts):
            attempt.redone_from = lowest
            if attempt.from_step is not None:
                lowest = attempt.from_step if lowest is None else min(lowest, attempt.from_step)

    def _found_nothing_to_do(self, attempt: Attempt) -> bool:
        """Return whether it began with the last state of a finished training and did nothing more."""
        parent = CheckpointName.parse(attempt.parent or "")
        before = self._attempts.get(parent.attempt) if parent is not None else None
        trained = attempt.saves or attempt.points or attempt.to_step != attempt.from_step
        ended = before is not None and before.how in ("finished", "complete")
        return ended and before is not None and before.to_step == attempt.from_step and not trained


def _save_of(event: Saved, at: datetime | None) -> Save:
    return Save(
        checkpoint=event.checkpoint,
        step=event.progress.updates,
        epoch=event.progress.epoch,
        at=at,
        size_bytes=event.size_bytes,
        took_seconds=event.took_seconds,
        stall_seconds=event.stall_seconds,
    )


def _save_from(info: CheckpointInfo, manifest: Manifest | None) -> Save:
    progress = info.progress
    return Save(
        checkpoint=info.name,
        step=progress.updates if progress is not None else None,
        epoch=progress.epoch if progress is not None else None,
        at=time_of(info.created_at),
        size_bytes=info.size_bytes if progress is not None else None,
        stall_seconds=manifest.cost.stall_seconds if manifest is not None else None,
    )


def _now(save: Save, info: CheckpointInfo | None) -> Save:
    return replace(save, is_there=info is not None, problem=info.problem if info is not None else None)


def _place_of(save: Save) -> tuple[int, int, int]:
    name = CheckpointName.parse(save.checkpoint)
    return (name.cycles, name.micro_step, name.nth_try) if name is not None else (0, 0, 0)
