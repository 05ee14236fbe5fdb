"""Defines the events that attempts record below ``events/``, and the files that hold them (``docs/format.md``).

A file that parses is complete and unaltered, and holds only known events with bounded fields. Their clocks order
nothing. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from ckptkit.core.progress import Progress
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import (
    MAX_ATTEMPT,
    Digest,
    Sealed,
    Seconds,
    SizeBytes,
    StrictModel,
    Token,
    decode,
    digest_of,
    encode,
    first_problem,
)
from ckptkit.scrubber import scrub

MAX_CURVES = 32  # of one point
MAX_PHASES = 32  # of one life
MAX_STACK_LINES = 400  # of one process

_COUNT = 10**15

Count = Annotated[int, Field(ge=0, le=_COUNT)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
Line = Annotated[str, Field(max_length=512)]
How = Literal["finished", "complete", "closed", "exited", "failed", "preempted", "interrupted", "overtaken"]
Bound = Literal["failures", "overhead", "storage"]  # of an interval between saves
PhaseName = Literal[
    "starting", "restoring", "replaying", "first_step", "training", "evaluating", "saving", "storage", "ended"
]
Spent = dict[PhaseName, Seconds]


class _Event(StrictModel):
    at: Annotated[str, Field(max_length=64)]


class _Timed(_Event):
    uptime_seconds: Seconds | None = None


class Began(_Timed):
    kind: Literal["began"] = "began"
    checkpoint: Line | None
    progress: Progress
    world_size: int = Field(ge=1, le=100_000)
    boot: Name | None = None
    born_seconds: Seconds | None = None
    spent: Spent | None = None


class Spread(StrictModel):
    """Summarizes a value over some cycles; its mean in each cycle counts as one number."""

    mean: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    not_finite: Count


class Point(_Event):
    """Records values over one cycle, or, later in an attempt, over several consecutive cycles."""

    kind: Literal["point"] = "point"
    first: Count
    last: Count
    cycles: int = Field(ge=1, le=_COUNT)
    values: Annotated[dict[Name, Spread], Field(max_length=MAX_CURVES)]


class Saved(_Timed):
    kind: Literal["saved"] = "saved"
    checkpoint: Line
    progress: Progress
    took_seconds: Seconds
    stall_seconds: Seconds
    queue_seconds: Seconds
    size_bytes: SizeBytes
    skipped_saves: Count
    taken_seconds: Seconds | None = None
    spent: Spent | None = None


class SaveFailed(_Event):
    kind: Literal["save_failed"] = "save_failed"
    checkpoint: Line
    progress: Progress
    error: Name
    message: Line


class Removed(_Event):
    kind: Literal["removed"] = "removed"
    checkpoint: Line
    after: Line


class Ended(_Timed):
    """Records that the attempt ended, if it had time to do so."""

    kind: Literal["ended"] = "ended"
    how: How
    progress: Progress
    error: Name | None
    message: Line
    spent: Spent | None = None


class Interval(_Event):
    """Records an interval that `SaveEvery.auto` chose, with its reasons."""

    kind: Literal["interval"] = "interval"
    cycles: int = Field(ge=1, le=_COUNT)
    cycle_seconds: Seconds
    seconds: Seconds
    bound: Bound
    overhead: Annotated[FiniteFloat, Field(ge=0, le=1)]
    stall_seconds: Seconds
    took_seconds: Seconds
    failures: Count
    exposed_seconds: Seconds


class LeftOut(_Event):
    """Records that events were dropped, because the storage accepted none for too long."""

    kind: Literal["left_out"] = "left_out"
    events: int = Field(ge=1, le=_COUNT)


class LifeEnded(_Timed):
    """Records the end of a process, or of the processes of one machine, that ``ckptkit run`` had started."""

    kind: Literal["life_ended"] = "life_ended"
    supervisor: Token
    number: int = Field(ge=1, le=_COUNT)
    attempt: Annotated[int, Field(ge=1, le=MAX_ATTEMPT)] | None
    boot: Name | None
    began_at: Annotated[str, Field(max_length=64)]
    seconds: Seconds
    earlier_seconds: Seconds
    down_seconds: Seconds
    exit_code: int | None = Field(ge=0, le=255)
    signal: Name | None
    cause: Name
    message: Line
    then: Literal["restart", "stop"]
    rank: Count | None
    ranks: Count | None
    restored: Line | None
    restored_step: Count | None
    last_step: Count | None
    committed_step: Count | None
    committed_seconds: Seconds
    phases: Annotated[dict[Name, Seconds], Field(max_length=MAX_PHASES)]


class Stacks(_Event):
    """Records where a process of the life ``number`` of ``supervisor``, which hung or crashed, stood."""

    kind: Literal["stacks"] = "stacks"
    supervisor: Token
    number: int = Field(ge=1, le=_COUNT)
    rank: Count | None
    pid: Count
    lines: Annotated[list[Line], Field(max_length=MAX_STACK_LINES)]


Event: TypeAlias = Began | Point | Saved | SaveFailed | Removed | Interval | Ended | LeftOut | LifeEnded | Stacks


def plain_line(text: str, most: int = 512) -> str:
    """Return the first line of ``text`` in a form that a document may hold: bounded, valid Unicode, without secrets."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    return scrub(first).encode(errors="backslashreplace").decode()[:most]


MAX_SEGMENT_BYTES = 1 << 20
MAX_EVENTS = 4000  # of one segment
MAX_SEGMENTS = 999_999  # of one attempt
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


class SegmentHeader(Sealed):
    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    number: int = Field(ge=1, le=MAX_SEGMENTS)
    token: Token
    events: int = Field(ge=1, le=MAX_EVENTS)
    events_digest: Digest


@dataclass(frozen=True)
class EventSegment:
    header: SegmentHeader
    events: Sequence[Event]


def encode_segment(attempt: int, token: str, number: int, events: Sequence[Event]) -> tuple[bytes, int]:
    """Encode as many of ``events`` as one segment holds, from the first on; returns its bytes and their number."""
    room = MAX_SEGMENT_BYTES - 1024  # a header is far smaller
    lines: list[bytes] = []
    for event in events[:MAX_EVENTS]:
        line = event.model_dump_json().encode() + b"\n"
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    rest = b"".join(lines)
    header = SegmentHeader(
        attempt=attempt, number=number, token=token, events=len(lines), events_digest=digest_of(rest)
    )
    return encode(header.sealed()) + b"\n" + rest, len(lines)


def decode_segment(data: bytes, key: str) -> EventSegment:
    if len(data) > MAX_SEGMENT_BYTES:
        raise CorruptCheckpointError(f"{key} is longer than {MAX_SEGMENT_BYTES} bytes")
    first, _, rest = data.partition(b"\n")
    header = decode(first, SegmentHeader, key)
    digest = digest_of(rest)
    if digest != header.events_digest:
        raise CorruptCheckpointError(
            f"{key} was altered: the digest of its events is {digest}, expected {header.events_digest}"
        )
    lines = rest.split(b"\n")[:-1]
    if len(lines) != header.events:
        raise CorruptCheckpointError(f"{key} has {len(lines)} events, but its first line says {header.events}")
    events: list[Event] = []
    for number, line in enumerate(lines, 2):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            raise CorruptCheckpointError(
                f"{key}, line {number} is not a valid event: {first_problem(error)}"
            ) from error
    return EventSegment(header, events)
