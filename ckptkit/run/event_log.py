"""Writes and reads the files of events, which are created once and never change.

What `EventLog.send` stored is durable and stored once, even if a reply was lost. A reader gets every file that parses,
and the reason why any other one does not. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptkit.checkpoint.commit import create_once
from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.core.worker import each_of
from ckptkit.errors import UnusableCheckpointError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.events import MAX_SEGMENT_BYTES, MAX_SEGMENTS, Event, EventSegment, decode_segment, encode_segment
from ckptkit.format.layout import EVENTS, attempt_key, parse_segment, segment_key
from ckptkit.run.index import Documents
from ckptkit.storage import Storage


class EventLog:
    def __init__(self, storage: Storage, attempt: AttemptDocument, *, after: int = 0) -> None:
        self._storage = storage
        self._attempt = attempt
        self._next = after + 1
        self._unsent: bytes | None = None

    def take(self, events: Sequence[Event]) -> int:
        """Put the first ``events``, as many as fit, into the next segment and return how many."""
        assert self._unsent is None  # noqa: S101 - one segment at a time
        if self._next > MAX_SEGMENTS:
            return len(events)
        self._unsent, count = encode_segment(self._attempt.attempt, self._attempt.token, self._next, events)
        return count

    def send(self) -> None:
        """Store the last segment, unless it is already stored."""
        if self._unsent is None:
            return
        # The name belongs to this attempt, so other content there is foreign. It stays; readers report it.
        create_once(self._storage, segment_key(self._attempt.attempt, self._next), self._unsent, MAX_SEGMENT_BYTES)
        self._next += 1
        self._unsent = None


def append_events(storage: Storage, attempt: int, events: Sequence[Event]) -> None:
    after = max((number for _, number in segments_of(storage, attempt)), default=0)
    log = EventLog(storage, Documents(storage).document(attempt), after=after)
    while events:
        events = events[log.take(events) :]
        log.send()


@dataclass(frozen=True)
class EventFiles:
    segments: Sequence[EventSegment]
    problems: dict[str, str]


def segments_of(storage: Storage, attempt: int | None = None) -> list[tuple[int, int]]:
    """List the segments of ``attempt``, or of all attempts, in their order: each as its attempt and its number."""
    files = storage.list(EVENTS, "" if attempt is None else f"a{attempt:06d}-").files
    return sorted(filter(None, map(parse_segment, files)))


def read_events(storage: Storage, documents: Documents) -> EventFiles:
    order = segments_of(storage)
    missing: dict[str, str] = {}
    last: dict[int, int] = {}
    for attempt, number in order:
        if number != last.get(attempt, 0) + 1:
            missing[segment_key(attempt, last.get(attempt, 0) + 1)] = "it is missing, and a later one is there"
        last[attempt] = number
    files = read_segments(storage, documents, order)
    return EventFiles(files.segments, {**missing, **files.problems})


def read_segments(storage: Storage, documents: Documents, places: Sequence[tuple[int, int]]) -> EventFiles:
    segments: list[EventSegment] = []
    problems: dict[str, str] = {}
    for place, result in zip(places, each_of(places, lambda place: _read(storage, *place)), strict=True):
        problem = result if isinstance(result, str) else _problem_of(result, place, documents)
        if problem is not None:
            problems[segment_key(*place)] = problem
        elif isinstance(result, EventSegment):
            segments.append(result)
    return EventFiles(segments, problems)


def _read(storage: Storage, attempt: int, number: int) -> EventSegment | str:
    key = segment_key(attempt, number)
    try:
        return reread_if_corrupt(lambda: decode_segment(storage.read(key, MAX_SEGMENT_BYTES), key))
    except FileNotFoundError:
        return f"{key} was removed while it was read"
    except UnusableCheckpointError as error:
        return str(error)


def _problem_of(segment: EventSegment, place: tuple[int, int], documents: Documents) -> str | None:
    header = segment.header
    if (header.attempt, header.number) != place:
        return f"{segment_key(*place)} is that of {segment_key(header.attempt, header.number)}"
    try:
        token = documents.document(header.attempt).token
    except UnusableCheckpointError:
        return None  # the token cannot be checked; the attempt's unreadable document is a separate problem
    if token != header.token:
        return f"{segment_key(*place)} has another token than {attempt_key(header.attempt)}"
    return None
