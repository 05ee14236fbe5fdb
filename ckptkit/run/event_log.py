"""Writes and reads the files below ``events/``: each is written once, and never changed.

Guarantees: what `EventLog.send` has stored is durable and is stored once, also when a reply was lost; an `EventLog`
writes to its own attempt's files only, and holds at most one segment that it could not store. A reader is given every
segment that parses and each reason why another one does not. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptkit.checkpoint.commit import create_once
from ckptkit.core.parallel import each_of
from ckptkit.errors import CorruptCheckpointError, FormatVersionError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.events import MAX_SEGMENT_BYTES, MAX_SEGMENTS, Event, Segment, decode_segment, encode_segment
from ckptkit.format.layout import EVENTS, attempt_key, parse_segment, segment_key
from ckptkit.run.index import Documents
from ckptkit.storage import Storage


class EventLog:
    """The segments of one attempt.

    Args:
        storage: The run root.
        attempt: The attempt that owns the run.
    """

    def __init__(self, storage: Storage, attempt: AttemptDocument) -> None:
        self._storage = storage
        self._attempt = attempt
        self._next = 1
        self._unsent: bytes | None = None

    def take(self, events: Sequence[Event]) -> int:
        """Make the next segment of as many of ``events`` as it holds, from the first on; returns how many.

        They are the log's from now on. Only after a `send` that returned.
        """
        assert self._unsent is None  # noqa: S101 - one segment at a time
        if self._next > MAX_SEGMENTS:
            return len(events)
        self._unsent, count = encode_segment(self._attempt.attempt, self._attempt.token, self._next, events)
        return count

    def send(self) -> None:
        """Store the segment that was made last, unless it is stored.

        Raises:
            StorageError: If it is not known whether it is; the next call tries the same bytes again.
        """
        if self._unsent is None:
            return
        # Whatever else may lie there is not of this attempt, to which the name belongs: it stays, for readers to name.
        create_once(self._storage, segment_key(self._attempt.attempt, self._next), self._unsent, MAX_SEGMENT_BYTES)
        self._next += 1
        self._unsent = None


@dataclass(frozen=True)
class EventFiles:
    """What lies below ``events/``.

    Attributes:
        segments: Those that parse, by attempt and number.
        problems: Why others do not, by key.
    """

    segments: Sequence[Segment]
    problems: dict[str, str]


def segments_of(storage: Storage, attempt: int) -> list[str]:
    """Keys of the files of ``attempt``, the last one first, so that those that are left have no gap."""
    files = map(parse_segment, storage.list(EVENTS, f"a{attempt:06d}-").files)
    return [segment_key(*place) for place in sorted(filter(None, files), reverse=True)]


def read_events(storage: Storage, documents: Documents) -> EventFiles:
    """Read all segments.

    Args:
        storage: The run root.
        documents: Of its attempts, to tell whose tokens those are.

    Raises:
        StorageError: If the storage failed.
    """
    named = {place: file for file in storage.list(EVENTS).files if (place := parse_segment(file)) is not None}
    order = sorted(named)
    found: list[Segment] = []
    problems: dict[str, str] = {}
    last: dict[int, int] = {}
    for place, result in zip(order, each_of(order, lambda place: _read(storage, *place)), strict=True):
        key = segment_key(*place)
        attempt, number = place
        if number != last.get(attempt, 0) + 1:
            problems[segment_key(attempt, last.get(attempt, 0) + 1)] = "it is missing, and a later one is there"
        last[attempt] = number
        why = result if isinstance(result, str) else _wrong_with(result, place, documents)
        if why is not None or isinstance(result, str):
            problems[key] = why or ""
        else:
            found.append(result)
    return EventFiles(found, problems)


def _read(storage: Storage, attempt: int, number: int) -> Segment | str:
    key = segment_key(attempt, number)
    try:
        return decode_segment(storage.read(key, MAX_SEGMENT_BYTES), key)
    except FileNotFoundError:
        return f"{key} was removed while it was read"
    except (CorruptCheckpointError, FormatVersionError) as error:
        return str(error)


def _wrong_with(segment: Segment, place: tuple[int, int], documents: Documents) -> str | None:
    header = segment.header
    if (header.attempt, header.number) != place:
        return f"{segment_key(*place)} is that of {segment_key(header.attempt, header.number)}"
    try:
        token = documents.document(header.attempt).token
    except (CorruptCheckpointError, FormatVersionError):
        return None  # whose they are cannot be told; the attempt's document is a problem of its own
    if token != header.token:
        return f"{segment_key(*place)} has another token than {attempt_key(header.attempt)}"
    return None
