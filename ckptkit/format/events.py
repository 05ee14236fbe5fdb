"""Defines the events that attempts record below ``events/``, for people and their plots.

Guarantees: an event that parses is of a known kind and has bounded fields; `segments` has the files. A start reads
them only where no checkpoint is committed, to see whether there was one; their clocks order nothing. The normative
text is ``docs/format.md``. Pure values, any thread.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from ckptkit.core.progress import Progress
from ckptkit.format.documents import MAX_ATTEMPT, Seconds, SizeBytes, Token
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


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

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


class Spread(BaseModel):
    """Summarizes a value over some cycles; its mean in each cycle counts as one number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

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
    """Records where a process of a life that hung, or crashed, stood."""

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
