"""Defines the files below ``events/``: a header, and a line for each event.

Guarantees: a segment that parses is complete and unaltered (its header carries its own digest and that of the rest),
and holds only known kinds of events with bounded fields; anything else is a `CorruptCheckpointError` that names the
file. Pure values, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.document_json import decode, encode
from ckptkit.format.documents import MAX_ATTEMPT, Digest, Sealed, Token, digest_of
from ckptkit.format.events import Event

MAX_SEGMENT_BYTES = 1 << 20
MAX_EVENTS = 4000  # of one segment
MAX_SEGMENTS = 999_999  # of one attempt
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


class SegmentHeader(Sealed):
    """Represents the first line of ``events/a000002-0001.jsonl``."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    number: int = Field(ge=1, le=MAX_SEGMENTS)
    token: Token
    events: int = Field(ge=1, le=MAX_EVENTS)
    events_digest: Digest


@dataclass(frozen=True)
class Segment:
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


def decode_segment(data: bytes, key: str) -> Segment:
    if len(data) > MAX_SEGMENT_BYTES:
        raise CorruptCheckpointError(f"{key} is longer than {MAX_SEGMENT_BYTES} bytes")
    first, _, rest = data.partition(b"\n")
    header = decode(first, SegmentHeader, key)
    found = digest_of(rest)
    if found != header.events_digest:
        raise CorruptCheckpointError(
            f"{key} was altered: the digest of its events is {found}, expected {header.events_digest}"
        )
    lines = rest.split(b"\n")[:-1]
    if len(lines) != header.events:
        raise CorruptCheckpointError(f"{key} has {len(lines)} events, but its first line says {header.events}")
    return Segment(header, [_decode_event(line, f"{key}, line {number}") for number, line in enumerate(lines, 2)])


def _decode_event(line: bytes, where: str) -> Event:
    try:
        return _EVENT.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise CorruptCheckpointError(f"{where} is not a valid event: {at}: {first['msg']}"[:600]) from error
