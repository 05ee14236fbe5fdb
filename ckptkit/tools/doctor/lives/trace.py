"""Defines what a life of the doctor or of replay is told and what it traces; reads traces.

Guarantees: reads while the ranks write; an incomplete last line is left out. In a job of one rank there is one trace.
Any thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from ckptkit.core.progress import Progress
from ckptkit.format.documents import digest_of
from ckptkit.manager.hooks import Suspect

# Documents that pydantic itself parses may be strict about it; a trace is parsed by the json module, see `line_of`.
TracedProgress = Annotated[
    Progress, BeforeValidator(lambda counters: Progress(**counters) if isinstance(counters, dict) else counters)
]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LifePlan(_Document):
    """Says what one process has to do."""

    root: str  # the scratch folder; each run root that the script names becomes a folder below it
    run: str | None = None  # the folder that any run root becomes instead, and in which nothing is removed
    # Run roots that are not followed. Of the rest, the first at which a micro-step ends is followed: what this plan
    # says is about its micro-steps. The process trains at any other one as well, and saves there.
    others: tuple[str, ...] = ()
    trace: str = ""  # file to which the lines are appended; see `trace_of` for ranks above 0
    stop: int = Field(ge=1)  # the micro-step after which the process ends itself
    enough: float | None = None  # when it does so earlier, after its second micro-step, in seconds of `time.monotonic`
    saves: tuple[int, ...] = ()  # the micro-steps after which to save
    kill: int | None = None  # the micro-step after which the process kills itself with SIGKILL
    kill_ranks: tuple[int, ...] | None = None  # the ranks that do so in a job of many ranks; None for all
    seed: int | None = None  # of every generator before the script begins; None if only the script seeds the process
    own_saves: bool = False  # whether the script's own schedule saves, and mirrors follow, at scratch roots
    # Whether the process kills itself once one of the script's own saves is committed, and uploaded if there are
    # mirrors: after the first micro-step that finds it so, or after the second one since the save began.
    kill_when_saved: bool = False


class Begun(_Document):
    """Records that a manager has restored.

    ``checkpoint`` is None on a fresh start; ``url`` is the script's root. ``digests`` are as in `Stepped`. In a job of
    many ``ranks``, ``replicated`` are names of digests that must be the same in every rank. ``mirrors`` are the URLs
    that the script gave of those in use; ``environment`` is what computes there, by name.
    """

    event: Literal["begun"] = "begun"
    url: str
    step: int
    checkpoint: str | None
    suspects: tuple[Suspect, ...] = ()
    digests: dict[str, str] = {}
    ranks: int = 1
    replicated: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class Stepped(_Document):
    """Records the state after a micro-step: ``digests`` by name of what must be equal, and texts of the rest by path.

    ``unseen`` is what else training reaches; ``began`` the same as the first batch was handed out, in the first
    micro-step of a life only. ``unstored`` is what was named as state that cannot be stored. ``at`` is when the
    micro-step ended, in seconds of `time.monotonic`. ``url`` is the script's root.
    """

    event: Literal["stepped"] = "stepped"
    step: int
    url: str = ""
    at: float = 0.0
    progress: TracedProgress
    digests: dict[str, str]
    unseen: dict[str, str] = {}
    began: dict[str, str] = {}
    unstored: dict[str, str] = {}


class SavedEvent(_Document):
    """Records a committed save after ``step``, names it changed (``moved``) and the objects that did it (``by``).

    ``stall_seconds`` is how long it kept training waiting, and 0 for the script's own saves.
    """

    event: Literal["saved"] = "saved"
    step: int
    moved: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    stall_seconds: float = 0.0


class Unrestored(_Document):
    """Records that no checkpoint was restored, for the reason ``why``."""

    event: Literal["unrestored"] = "unrestored"
    why: str


class Refused(_Document):
    """Records that the script cannot be rehearsed."""

    event: Literal["refused"] = "refused"
    why: str


class StoppedEvent(_Document):
    """Records that the process has done its part and ends itself."""

    event: Literal["stopped"] = "stopped"
    step: int


class KilledEvent(_Document):
    """Records that this process kills itself next."""

    event: Literal["killed"] = "killed"
    step: int


Event = Annotated[
    Begun | Stepped | SavedEvent | Unrestored | Refused | StoppedEvent | KilledEvent, Field(discriminator="event")
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def line_of(document: BaseModel) -> bytes:
    """Return ``document`` as a line; a path in it need not be valid Unicode, as pydantic's own JSON demands."""
    return json.dumps(document.model_dump(), separators=(",", ":")).encode() + b"\n"


def scratch_run(root: Path, url: str) -> Path:
    """Return the folder below ``root`` that replaces the run root ``url``."""
    return root / f"run-{digest_of(url.encode(errors='surrogatepass'))}"


def trace_of(trace: Path, rank: int) -> Path:
    """Return the file with the trace of ``rank``; that of rank 0 is the plan's own."""
    return trace if rank == 0 else trace.with_name(f"{trace.name}-rank-{rank:05d}")


def read_trace(path: Path) -> list[Event]:
    """Return the events of one life in order, without an incomplete last line; raise ValueError for a foreign line."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [EVENT.validate_python(json.loads(line)) for line in lines if line.endswith(b"\n")]


def read_traces(trace: Path) -> list[list[Event]]:
    """Return the events of each rank, by the ``trace`` of rank 0; one empty list if none has restored a run."""
    return [read_trace(trace_of(trace, rank)) for rank in range(_size(trace))]


def have_ended(trace: Path) -> bool:
    """Return whether a rank has killed itself or was not restored, or all have stopped; a launcher may go on."""
    last = [_last(trace_of(trace, rank)) for rank in range(_size(trace))]
    return any(isinstance(event, KilledEvent | Unrestored) for event in last) or all(
        isinstance(event, StoppedEvent) for event in last
    )


def _size(trace: Path) -> int:
    """Return the number of ranks that a rank has told; 1 if none has."""
    for path in (trace, *sorted(trace.parent.glob(f"{trace.name}-rank-*"))):
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    event = EVENT.validate_python(json.loads(line)) if line.endswith(b"\n") else None
                    if isinstance(event, Begun):
                        return event.ranks
                    if not isinstance(event, Unrestored):
                        break
    return 1


def _last(trace: Path) -> Event | None:
    lines = trace.read_bytes().splitlines(keepends=True) if trace.exists() else []
    whole = [line for line in lines[-2:] if line.endswith(b"\n")]
    return EVENT.validate_python(json.loads(whole[-1])) if whole else None
