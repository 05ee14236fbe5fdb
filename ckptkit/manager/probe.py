"""A rehearsal: one life of a user's script under ``ckptkit doctor``, and the trace that it leaves.

``CKPTKIT_DOCTOR`` names a JSON file, a `LifePlan`. While it is set, a `ckptkit.CheckpointManager` works below the
plan's scratch folder and never looks at the root that the script gave; its own schedule is off; after every
micro-step it appends a line to the trace, saves where the plan says, and dies or stops where the plan says.

Guarantees: a line of the trace survives a SIGKILL that follows it. It does not rehearse several ranks. Training
thread only.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.format.documents import digest_of
from ckptkit.snapshot import Capturable
from ckptkit.storage import Storage, open_storage

VARIABLE = "CKPTKIT_DOCTOR"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LifePlan(_Document):
    """What one process has to do.

    Attributes:
        root: The scratch folder; each run root that the script names becomes a folder below it.
        trace: File that the lines are appended to.
        stop: The micro-step after which the process ends itself.
        saves: The micro-steps after which to save.
        kill: The micro-step after which the process kills itself with SIGKILL, or None.
        seed: For every generator, before the script begins; None for a process that is seeded by its script alone.
    """

    root: str
    trace: str
    stop: int = Field(ge=1)
    saves: tuple[int, ...] = ()
    kill: int | None = None
    seed: int | None = None


class Suspect(_Document):
    """A part of the job that may keep it from being exact, known without running it.

    Attributes:
        kind: ``operator`` or ``pipeline`` for what is random, anything else for the rest.
        where: Its name.
        why: What is wrong with it.
        fix: What to do.
    """

    kind: str
    where: str
    why: str
    fix: str


class Unseen(_Document):
    """A value that training code holds and that is in no checkpoint.

    Attributes:
        digest: Of the value.
        text: What it is, for people.
        like_weights: Whether it holds arrays of the shapes of the weights, as accumulated gradients do.
    """

    digest: str
    text: str
    like_weights: bool = False


class Begun(_Document):
    """A manager has restored: ``checkpoint`` is None on a fresh start. ``url`` is the root that the script gave."""

    event: Literal["begun"] = "begun"
    url: str
    step: int
    checkpoint: str | None
    suspects: tuple[Suspect, ...] = ()


class Stepped(_Document):
    """The state after a micro-step: digests by name of what must be equal, and what is in no checkpoint."""

    event: Literal["stepped"] = "stepped"
    step: int
    progress: Progress
    digests: dict[str, str]
    unseen: dict[str, Unseen] = {}


class Saved(_Document):
    """The save after ``step`` is committed; ``moved`` names what it changed, ``by`` the objects that did it."""

    event: Literal["saved"] = "saved"
    step: int
    moved: tuple[str, ...] = ()
    by: tuple[str, ...] = ()


class Refused(_Document):
    """The script cannot be rehearsed."""

    event: Literal["refused"] = "refused"
    why: str


class Stopped(_Document):
    """The process has done what it had to and ends itself."""

    event: Literal["stopped"] = "stopped"
    step: int


Event = Annotated[Begun | Stepped | Saved | Refused | Stopped, Field(discriminator="event")]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class Observer(Protocol):
    """Looks at a training state without changing it."""

    def observe(self) -> tuple[dict[str, str], dict[str, Unseen]]:
        """Digests by name of what must be equal, and what is in no checkpoint."""
        ...

    def drawing_in_state_dict(self) -> list[str]:
        """Names of the stateful objects whose ``state_dict()`` draws random numbers; asks each once."""
        ...

    def suspects(self) -> list[Suspect]:
        """What is known without running to keep the job from being exact."""
        ...


@runtime_checkable
class Observable(Protocol):
    """A `ckptkit.snapshot.Capturable` that a rehearsal can look into."""

    def observer(self) -> Observer:
        """One that looks at this state from now on."""
        ...


class SaveHandle(Protocol):
    """What `TrialProbe.step` needs of a save."""

    def result(self) -> str:
        """Wait for the commit."""
        ...


class TrialProbe:
    """What a `ckptkit.CheckpointManager` does differently under ``ckptkit doctor``."""

    def __init__(self, plan: LifePlan, url: str) -> None:
        self._plan = plan
        self._url = url
        self._observer: Observer | None = None
        self._last = -1

    @property
    def storage(self) -> Storage:
        """The scratch folder that stands for the script's own root."""
        return open_storage(Path(self._plan.root) / f"run-{digest_of(self._url.encode())}")

    def begin(self, state: Capturable, point: ResumePoint) -> None:
        """Note that the run was restored.

        Raises:
            ResumeError: If nobody could say of this state what differs, or this life has trained at another root.
        """
        if not isinstance(state, Observable):
            self._refuse(
                f"the state is a {type(state).__name__}, which has no observer(): the doctor compares what a "
                "ckptkit.StateManager or a CheckpointCallback holds"
            )
        # A trace names micro-steps by their number alone. The second training of one root goes on with the numbers.
        others = [one.url for one in read_trace(Path(self._plan.trace)) if isinstance(one, Begun)]
        if any(url != self._url for url in others):
            self._refuse(
                f"it trains at {others[0]} and then at {self._url}, and the doctor follows one run: examine one at a "
                "time, with the other training left out"
            )
        self._observer = observer = state.observer()
        self._last = point.batches_delivered
        suspects = tuple(observer.suspects())
        self._write(Begun(url=self._url, step=point.batches_delivered, checkpoint=point.checkpoint, suspects=suspects))

    def step(self, state: Capturable, save: Callable[[], SaveHandle]) -> None:
        """As `look`, once after every micro-step.

        Raises:
            ResumeError: If batches are not counted, so that no micro-step can be told from the one before.
            CkptKitError: What the save raises.
        """
        if state.progress().batches_delivered == 0:
            self._refuse("the train cell's calls are not counted: call state.count_delivered(n) after every batch")
        self.look(state, save)

    def look(self, state: Capturable, save: Callable[[], SaveHandle]) -> None:
        """Trace the micro-step that has just ended, save, die or stop; a second call at one progress does nothing."""
        assert self._observer is not None  # noqa: S101 - the manager insists on restore() first
        progress = state.progress()
        step = progress.batches_delivered
        if step == self._last:
            return
        self._last = step
        digests, unseen = self._observer.observe()
        self._write(Stepped(step=step, progress=progress, digests=digests, unseen=unseen))
        if step in self._plan.saves:
            self._save(step, digests, save)
        if step == self._plan.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if step >= self._plan.stop:
            self._write(Stopped(step=step))
            _end()

    def _save(self, step: int, before: dict[str, str], save: Callable[[], SaveHandle]) -> None:
        assert self._observer is not None  # noqa: S101 - as in `look`
        handle = save()
        after, _ = self._observer.observe()
        moved = tuple(name for name, digest in after.items() if before.get(name) != digest)
        handle.result()
        by = tuple(self._observer.drawing_in_state_dict()) if moved else ()
        self._write(Saved(step=step, moved=moved, by=by))

    def _refuse(self, why: str) -> NoReturn:
        self._write(Refused(why=why))
        raise ResumeError(why)

    def _write(self, event: BaseModel) -> None:
        # One write to the kernel: no SIGKILL takes it back, and no two lines mix.
        line = event.model_dump_json().encode() + b"\n"
        descriptor = os.open(self._plan.trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)


def probe_of(url: str) -> TrialProbe | None:
    """The rehearsal of a manager whose script gave ``url``; None outside of ``ckptkit doctor``.

    Raises:
        ValueError: If ``CKPTKIT_DOCTOR`` names no valid plan.
    """
    path = os.environ.get(VARIABLE)
    return TrialProbe(_plan(path), url) if path else None


def read_trace(path: Path) -> list[Event]:
    """The events of one life in their order; a last line that was cut is left out.

    Raises:
        ValueError: If a line is not of a trace.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    return [EVENT.validate_json(line) for line in lines if line.endswith(b"\n")]


@functools.lru_cache(maxsize=1)
def _plan(path: str) -> LifePlan:
    try:
        return LifePlan.model_validate_json(Path(path).read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(
            f"{VARIABLE}={path} names no plan of a rehearsal ({error}). Unset it, or run the script "
            "with `ckptkit doctor -- python train.py`"
        ) from error


def _end() -> NoReturn:
    # At once: what the script does after training (export, upload) is none of the rehearsal's business.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
