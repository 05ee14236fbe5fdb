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
    """Represents one line of a segment.

    Attributes:
        at: Time in ISO 8601, by the clock of the writing process; for people only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: Annotated[str, Field(max_length=64)]


class _Timed(_Event):
    """Represents an event that also has the time of the monotonic clock.

    Attributes:
        uptime_seconds: By the host's monotonic clock; None in events of versions that did not record it.
    """

    uptime_seconds: Seconds | None = None


class Began(_Timed):
    """Records that the attempt began.

    Attributes:
        checkpoint: The checkpoint that was applied; None for a fresh start.
        progress: Progress from which the attempt continued.
        world_size: Number of ranks of the job.
        boot: Identifies the boot of the host; with the same one, monotonic clocks can be compared. None if unknown.
        born_seconds: When the process began, by the same clock; in a process that trained before, when the restore did.
        spent: Seconds since then, by phase.
    """

    kind: Literal["began"] = "began"
    checkpoint: Line | None
    progress: Progress
    world_size: int = Field(ge=1, le=100_000)
    boot: Name | None = None
    born_seconds: Seconds | None = None
    spent: Spent | None = None


class Spread(BaseModel):
    """Summarizes a value over some cycles; its mean in each cycle counts as one number.

    Attributes:
        mean: Mean of the finite numbers; None if there was none.
        low: The smallest of them.
        high: The largest of them.
        not_finite: How many were NaN or infinite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    mean: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None
    not_finite: Count


class Point(_Event):
    """Records values over one cycle, or, later in an attempt, over several consecutive cycles.

    Attributes:
        first: Optimizer steps after the first of the cycles.
        last: Optimizer steps after the last one.
        cycles: Number of cycles.
        values: Values by name; includes ``loss`` and ``gradient_norm`` if they were known.
    """

    kind: Literal["point"] = "point"
    first: Count
    last: Count
    cycles: int = Field(ge=1, le=_COUNT)
    values: Annotated[dict[Name, Spread], Field(max_length=MAX_CURVES)]


class Saved(_Timed):
    """Records that a checkpoint was committed.

    Attributes:
        checkpoint: Name of the checkpoint.
        progress: Progress that it stores.
        took_seconds: Time from the save call to the commit.
        stall_seconds: Time taken from the training thread.
        queue_seconds: Part of that spent waiting for the previous save.
        size_bytes: Bytes written for it.
        skipped_saves: Saves of the whole attempt that were due and skipped before this save began.
        taken_seconds: When the save took the state, by the monotonic clock.
        spent: Seconds from the birth of the process until then, by phase.
    """

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
    """Records that a save failed.

    Attributes:
        checkpoint: Name that the checkpoint would have had.
        progress: Progress that it would have stored.
        error: Class of the error.
        message: First line of the error.
    """

    kind: Literal["save_failed"] = "save_failed"
    checkpoint: Line
    progress: Progress
    error: Name
    message: Line


class Removed(_Event):
    """Records that retention removed a checkpoint.

    Attributes:
        checkpoint: Name of the checkpoint.
        after: The checkpoint whose commit preceded the removal.
    """

    kind: Literal["removed"] = "removed"
    checkpoint: Line
    after: Line


class Ended(_Timed):
    """Records that the attempt ended, if it had time to do so.

    Attributes:
        how: ``finished``: training reached its end and its last state was committed; ``complete``: nothing was left to
            train; ``closed``: without an error, but no last state was requested; ``exited``: the program ended without
            closing the manager; ``overtaken``: by a later attempt.
        progress: Last known progress.
        error: Class of the error that ended it.
        message: First line of the error.
        spent: Seconds from the birth of the process, by phase.
    """

    kind: Literal["ended"] = "ended"
    how: How
    progress: Progress
    error: Name | None
    message: Line
    spent: Spent | None = None


class Interval(_Event):
    """Records an interval that `SaveEvery.auto` chose, with its reasons.

    Attributes:
        cycles: Cycles between two saves.
        cycle_seconds: Duration of a cycle.
        seconds: The interval as it was computed.
        bound: What decided it, as in `ckptkit.run.goodput.interval.Choice`.
        overhead: Share of the time that saves may take as long as no life failed.
        stall_seconds: Mean time that a save kept training waiting.
        took_seconds: Longest time from a save's call to its commit.
        failures: Lives of the run that failed.
        exposed_seconds: Time in which they could have.
    """

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
    """Records that events were dropped, because the storage accepted none for too long.

    Attributes:
        events: Number of dropped events.
    """

    kind: Literal["left_out"] = "left_out"
    events: int = Field(ge=1, le=_COUNT)


class LifeEnded(_Timed):
    """Records the end of a process, or of the processes of one machine, that ``ckptkit run`` had started.

    The supervisor writes it after that end, with the last attempt of the run that it knows. Seconds are by the
    monotonic clock; ``uptime_seconds`` is the end of ``seconds``.

    Attributes:
        supervisor: Token of the ``ckptkit run``.
        number: Number of the life under it, from 1.
        attempt: The attempt that it began; the last one, if it began several. None if it began none.
        boot: As in `Began`.
        began_at: When the command was started, in ISO 8601.
        seconds: From then until no process was left.
        earlier_seconds: The part of them before that attempt, if processes of the life trained something before.
        down_seconds: From the end of the life before until then; 0 for the first one.
        exit_code: What the command returned; None if a signal ended it.
        signal: The signal that ended it, such as ``SIGKILL``.
        cause: Why it ended, by name; see ``docs/run.md``.
        message: The same for people.
        then: What the supervisor did next.
        rank: The rank that the cause is about, if there is one.
        ranks: Ranks of the job; None if no process restored a run.
        restored: The checkpoint that was restored; None for a fresh start, or if none was.
        restored_step: Batches delivered in it; None if no process restored a run.
        last_step: Batches delivered when the last micro-step ended.
        committed_step: Batches delivered in the newest checkpoint that the life committed, if it did.
        committed_seconds: Seconds of the phase ``training`` when that one was captured.
        phases: Seconds by phase, of rank 0 or the lowest one of that machine. They add up to ``seconds`` without
            ``earlier_seconds``. ``hung``: without a sign of progress, until the hang was ended. ``dead``: after the
            death of the process, or of one without which it could not go on.
    """

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
    """Records where a process of a life that hung, or crashed, stood.

    Attributes:
        supervisor: As of the life's `LifeEnded`.
        number: The same.
        rank: Rank of the process, if known.
        pid: Its number.
        lines: What `faulthandler` or py-spy wrote.
    """

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
