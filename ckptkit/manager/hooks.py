"""Lets another program take the place of a manager's root, mirrors and schedule: ``ckptkit doctor`` and ``replay``.

``CKPTKIT_HOOKS`` is ``module:argument``. While it is set, each `ckptkit.CheckpointManager` calls the module's function
``hooks(argument, url)`` and obeys what it returns. A variable reaches the script through any launcher, and no part of
it can be lost on the way: a script that is examined must never train at its own root. Training thread only.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import BaseModel, ConfigDict

from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.manager.options import Mirror
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.snapshot import Capturable
from ckptkit.storage import Storage

VARIABLE = "CKPTKIT_HOOKS"
LOADER = "loader "  # how the path of an unseen value begins that a loader with a state of its own holds

READS_AHEAD = "reads ahead"


class Suspect(BaseModel):
    """Describes a part of the job that may keep it from being exact, found without running it.

    Attributes:
        kind: ``operator`` or ``pipeline`` for random parts; `READS_AHEAD` for code of the user's that makes batches
            ahead of training, which is no fault by itself; any other value for the rest.
        where: Name of the part.
        why: What is wrong with it.
        fix: What to do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    where: str
    why: str
    fix: str


class Unseen(BaseModel):
    """Describes a value that training code holds and that no checkpoint contains.

    Attributes:
        digest: Digest of the value.
        text: Description of the value, for people.
        like_weights: Whether it holds arrays with the shapes of the weights, as accumulated gradients do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    text: str
    like_weights: bool = False


Setting: TypeAlias = Literal["pynative", "deterministic", "one thread", "one worker", "read little ahead"]
"""What a job may be run with, to see whether it makes two runs equal: GRAPH off, `mindspore.set_deterministic`, one
thread for kernels, one worker for data, as few batches as possible read ahead of training."""


class Recorded(BaseModel):
    """Records one event of a training: a call that begins or ends, an operation of the data, or a micro-step's end.

    Attributes:
        event: What it is.
        depth: How many recorded calls were running.
        kind: ``cell``, ``random cell``, ``graph``, ``operator``, ``random operator``, ``function`` of MindSpore,
            ``gradients``, ``code`` of the user's or ``random`` for the module; for ``sample``, the place in the
            pipeline; empty for ``step``.
        where: What is called, such as ``network.drop (nn.Dropout)``, or the number of the micro-step.
        line: The line of the user's code that was running, such as ``train.py:12``.
        values: Digests of the inputs of a call, or of what it returned; for ``sample`` both.
        drawn: Digests of numbers that the user's code takes or returns: they matter only if an operator gets them.
        called: Functions without Python code that the user's code called since the event before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["call", "return", "sample", "step"]
    depth: int = 0
    kind: str = ""
    where: str
    line: str = ""
    values: dict[str, str] = {}
    drawn: dict[str, str] = {}
    called: tuple[str, ...] = ()


class Observer(Protocol):
    """Inspects a training state without changing it; `record` and `use` are for finding what differs between runs."""

    def observe(self) -> tuple[dict[str, str], dict[str, Unseen]]:
        """Return digests by name of what must be equal, and the values that are in no checkpoint."""
        ...

    def drawing_in_state_dict(self) -> list[str]:
        """Return the names of the stateful objects whose ``state_dict()`` draws random numbers; calls each once."""
        ...

    def suspects(self) -> list[Suspect]:
        """Return what keeps the job from being exact as far as known without running it."""
        ...

    def replicated(self) -> list[str]:
        """Return the names of the digests that must be the same in every rank; called in jobs of many ranks only."""
        ...

    def record(self, write: Callable[[Recorded], None]) -> None:
        """From now on, write an event for every call on this thread and every operation of the data."""
        ...

    def use(self, settings: Sequence[Setting]) -> None:
        """Set what ``settings`` say, for the rest of this process."""
        ...


@runtime_checkable
class Observable(Protocol):
    """Extends `ckptkit.snapshot.Capturable` with an observer for hooks."""

    def observer(self) -> Observer:
        """Return an observer that inspects this state from now on."""
        ...


class SaveHandle(Protocol):
    """Declares what `Hooks` needs of a save."""

    def result(self, timeout: timedelta | None = None) -> str:
        """Wait for the commit, above rank 0 for this rank's part; `NotEndedError` if ``timeout`` expires."""
        ...


Save: TypeAlias = Callable[[Mapping[str, float]], SaveHandle]
"""Saves now; takes metrics to store in addition to those of the call."""


Wait: TypeAlias = Callable[[timedelta | None], None]
"""Waits until what was saved is committed and, where that is due, at the mirrors; `NotEndedError` if that takes longer.

Above rank 0, it waits for this rank's parts.
"""


class Hooks(Protocol):
    """Replaces the root, the mirrors and the schedule of a manager; without events and preemption.

    In a job of many ranks every rank has hooks of its own, which make the same calls of `Save` at the same moments.
    """

    @property
    def storage(self) -> Storage:
        """The run root that replaces the script's own."""
        ...

    @property
    def keeps_schedule(self) -> bool:
        """Whether the schedule goes on after `step`; its saves are read as late as the fence allows then."""
        ...

    def keep(self, given: KeepPolicy) -> KeepPolicy:
        """Return the policy that replaces the ``given`` one."""
        ...

    def mirrors(self, given: Sequence[Mirror]) -> Sequence[Mirror]:
        """Return the mirrors that replace those ``given``, the nearest first; called before `begin`."""
        ...

    def unrestored(self, state: Capturable, why: str) -> None:
        """Act when the restore has failed or was refused, for the reason ``why``."""
        ...

    def begin(self, state: Capturable, point: ResumePoint, wait: Wait) -> None:
        """Act once, after the restore."""
        ...

    def step(self, state: Capturable, save: Save) -> None:
        """Act after a micro-step, in place of the schedule or, if `keeps_schedule`, before it."""
        ...

    def saving(self) -> None:
        """Act after the schedule has begun a save."""
        ...

    def look(self, state: Capturable, save: Save) -> None:
        """Act before a save that the script asks for itself."""
        ...

    def finished(self, progress: Progress) -> None:
        """Act after the script's final save."""
        ...


def hooks_of(url: str) -> Hooks | None:
    """Return the hooks of a manager whose script gave ``url``; None where no program set any.

    Raises:
        ImportError: If ``CKPTKIT_HOOKS`` names no module.
        ValueError: If the module cannot use its argument.
    """
    module, _, argument = os.environ.get(VARIABLE, "").partition(":")
    if not module:
        return None
    hooks: Hooks = importlib.import_module(module).hooks(argument, url)
    return hooks
