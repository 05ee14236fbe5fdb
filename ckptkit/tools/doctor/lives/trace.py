"""Defines what a life of the doctor or of replay is told and what it traces; reads traces.

Guarantees: reads while the ranks write; an incomplete last line is left out. In a job of one rank there is one trace.
Any thread.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ckptkit.core.progress import Progress
from ckptkit.format.documents import digest_of
from ckptkit.manager.hooks import Setting, Suspect, Unseen

_LARGEST = sys.float_info.max  # JSON has no infinity


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LifePlan(_Document):
    """Says what one process has to do.

    Attributes:
        root: The scratch folder; each run root that the script names becomes a folder below it.
        run: The folder that any run root becomes instead, and in which nothing is removed; None without one.
        others: Run roots that are not followed, each with the most micro-steps that a life has done there between two
            of the followed run. Of the rest, the first at which a micro-step ends is followed: what this plan says is
            about its micro-steps. At any other one, the process trains as well; see `Runs`.
        trace: File to which the lines are appended; see `trace_of` for ranks above 0.
        stop: The micro-step after which the process ends itself.
        enough: When it ends itself even earlier, after its second micro-step, in seconds of `time.monotonic`; or None.
        saves: The micro-steps after which to save.
        kill: The micro-step after which the process kills itself with SIGKILL, or None.
        kill_ranks: The ranks that do so in a job of many ranks; None for all.
        seed: Seed of every generator before the script begins; None if only the script seeds the process.
        own_saves: Whether the script's own schedule saves, as without the doctor, and mirrors follow, at scratch roots.
        kill_when_saved: Whether the process kills itself with SIGKILL once one of the script's own saves is committed,
            and uploaded if there are mirrors: after the first micro-step that finds it so, or after the second one
            since the save began.
        record: File to which every call is written, or None; see `Record`.
        record_after: The micro-step after which that begins.
        settings: What the process sets after its restore.
        changes_ranks: Whether it is on one side of a change of the number of ranks: it keeps all its checkpoints,
            and traces what it has restored, and totals of its accumulators then and after each planned save.
    """

    root: str
    run: str | None = None
    others: dict[str, int] = {}
    trace: str
    stop: int = Field(ge=1)
    enough: float | None = None
    saves: tuple[int, ...] = ()
    kill: int | None = None
    kill_ranks: tuple[int, ...] | None = None
    seed: int | None = None
    own_saves: bool = False
    kill_when_saved: bool = False
    record: str | None = None
    record_after: int = 0
    settings: tuple[Setting, ...] = ()
    changes_ranks: bool = False


class Total(_Document):
    """Holds three sums over a tensor: of its elements, of these with fixed random signs, and of their sizes.

    The first two of the parts of a sum add up to those of the sum, but for rounding, which the third one bounds.
    """

    plain: float
    signed: float
    size: float  # the largest number if an element is not finite; the other two are 0 then


class Restored(_Document):
    """Holds where a restore began, and totals of the accumulators; ``cut`` are names of cut leaves."""

    progress: Progress
    totals: dict[str, Total] = {}
    cut: tuple[str, ...] = ()


class Begun(_Document):
    """Records that a manager has restored.

    ``checkpoint`` is None on a fresh start; ``url`` is the script's root. ``digests`` and ``unseen`` are as in
    `Stepped`. ``empties`` says that the script has removed that root before. In a job of many ``ranks``, ``replicated``
    are names of digests that must be the same in every rank. ``restored`` is there if the plan says so. ``mirrors`` are
    the URLs that the script gave of those in use.
    """

    event: Literal["begun"] = "begun"
    url: str
    step: int
    checkpoint: str | None
    suspects: tuple[Suspect, ...] = ()
    digests: dict[str, str] = {}
    unseen: dict[str, Unseen] | None = None
    ranks: int = 1
    replicated: tuple[str, ...] = ()
    restored: Restored | None = None
    empties: bool = False
    mirrors: tuple[str, ...] = ()


class Stepped(_Document):
    """Records the state after a micro-step: digests by name of what must be equal, and values in no checkpoint.

    ``at`` is when it ended, in seconds of `time.monotonic`. ``made`` are the files and folders that the process has
    made since the line before and that are still there, outside of the doctor's own. ``others`` are the micro-steps
    after which the runs at other roots stand by then.
    """

    event: Literal["stepped"] = "stepped"
    step: int
    at: float = 0.0
    progress: Progress
    digests: dict[str, str]
    unseen: dict[str, Unseen] = {}
    made: tuple[str, ...] = ()
    others: dict[str, int] = {}


class Followed(_Document):
    """Records that the run root ``url`` is followed, of several that were restored before."""

    event: Literal["followed"] = "followed"
    url: str


class Other(_Document):
    """Records that the process trains at the run root ``url``, which is not followed."""

    event: Literal["other"] = "other"
    url: str


class Later(_Document):
    """Records a micro-step of the run at ``url``, which began when the followed one had ended ``after``."""

    event: Literal["later"] = "later"
    url: str
    after: int
    line: Stepped


class Saved(_Document):
    """Records a committed save after ``step``, names it changed (``moved``) and the objects that did it (``by``).

    ``totals`` are those of the accumulators, if the plan says so.
    """

    event: Literal["saved"] = "saved"
    step: int
    moved: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    totals: dict[str, Total] = {}


class Unrestored(_Document):
    """Records that no checkpoint was restored, for the reason ``why``."""

    event: Literal["unrestored"] = "unrestored"
    why: str


class Refused(_Document):
    """Records that the script cannot be rehearsed."""

    event: Literal["refused"] = "refused"
    why: str


class Stopped(_Document):
    """Records that the process has done its part and ends itself; ``beyond`` the end of the run that is followed."""

    event: Literal["stopped"] = "stopped"
    step: int
    beyond: bool = False


class Killed(_Document):
    """Records that this process kills itself next."""

    event: Literal["killed"] = "killed"
    step: int


Event = Annotated[
    Begun | Stepped | Followed | Other | Later | Saved | Unrestored | Refused | Stopped | Killed,
    Field(discriminator="event"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def total_of(values: npt.NDArray[Any]) -> Total:
    """Return the total of a tensor of numbers; the signs depend on the number of elements only."""
    flat = values.reshape(-1).astype(np.float64)
    size = float(np.abs(flat).sum())
    if not math.isfinite(size):
        return Total(plain=0.0, signed=0.0, size=_LARGEST)
    signs = np.random.default_rng(flat.size).integers(0, 2, flat.size, np.int8) * 2 - 1
    return Total(plain=float(flat.sum()), signed=float(flat @ signs), size=size)


def line_of(document: BaseModel, *, exclude_defaults: bool = False) -> bytes:
    """Return ``document`` as a line; a path in it need not be valid Unicode, as pydantic's own JSON demands."""
    fields = document.model_dump(exclude_defaults=exclude_defaults)
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def scratch_run(root: Path, url: str) -> Path:
    """Return the folder below ``root`` that replaces the run root ``url``."""
    return root / f"run-{digest_of(url.encode(errors='surrogatepass'))}"


def trace_of(trace: Path, rank: int) -> Path:
    """Return the file with the trace of ``rank``; that of rank 0 is the plan's own."""
    return trace if rank == 0 else trace.with_name(f"{trace.name}-rank-{rank:05d}")


def read_trace(path: Path) -> list[Event]:
    """Return the events of one life in order; an incomplete last line is left out.

    Raises:
        ValueError: If a line does not belong to a trace.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [EVENT.validate_python(json.loads(line)) for line in lines if line.endswith(b"\n")]


def read_traces(trace: Path) -> list[list[Event]]:
    """Return the events of each rank; one empty list if none has restored a run.

    Args:
        trace: The trace of rank 0, which tells where the others are.

    Raises:
        ValueError: If a line does not belong to a trace.
    """
    return [read_trace(trace_of(trace, rank)) for rank in range(_size(trace))]


def have_ended(trace: Path) -> bool:
    """Return whether a rank has killed itself or was not restored, or all have stopped; a launcher may go on."""
    last = [_last(trace_of(trace, rank)) for rank in range(_size(trace))]
    return any(isinstance(one, Killed | Unrestored) for one in last) or all(isinstance(one, Stopped) for one in last)


def _size(trace: Path) -> int:
    """Return the number of ranks that a rank has told; 1 if none has."""
    for one in (trace, *sorted(trace.parent.glob(f"{trace.name}-rank-*"))):
        if one.exists():
            with one.open("rb") as file:
                for line in file:
                    event = EVENT.validate_python(json.loads(line)) if line.endswith(b"\n") else None
                    if isinstance(event, Begun):
                        return event.ranks
                    if not isinstance(event, Unrestored | Followed | Other):
                        break
    return 1


def _last(trace: Path) -> Event | None:
    lines = trace.read_bytes().splitlines(keepends=True) if trace.exists() else []
    whole = [line for line in lines[-2:] if line.endswith(b"\n")]
    return EVENT.validate_python(json.loads(whole[-1])) if whole else None
