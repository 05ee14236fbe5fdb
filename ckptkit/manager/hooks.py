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
from typing import Protocol, TypeAlias

from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.format.documents import StrictModel
from ckptkit.manager.options import Mirror
from ckptkit.manager.writer import SaveHandle
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.snapshot import Capturable
from ckptkit.storage import Storage

VARIABLE = "CKPTKIT_HOOKS"
LOADER = "loader "  # how the path of what a loader with a state of its own holds begins


class Suspect(StrictModel):
    """Describes a part of the job that may keep it from being exact, found without running it."""

    kind: str
    where: str
    why: str
    fix: str


# Saves now; stores these metrics in addition to those of the call.
Save: TypeAlias = Callable[[Mapping[str, float]], SaveHandle]
# Waits until what was saved is committed and, where that is due, at the mirrors; above rank 0, for this rank's parts.
# It raises `NotEndedError` if that takes longer.
Wait: TypeAlias = Callable[[timedelta | None], None]


class Hooks(Protocol):
    """Replaces the root, the mirrors and the schedule of a manager; without events and preemption.

    In a job of many ranks every rank has hooks of its own, which make the same calls of `Save` at the same moments.
    """

    @property
    def storage(self) -> Storage: ...

    @property
    def keeps_schedule(self) -> bool:
        """Whether the schedule goes on after `step`; its saves are read as late as the fence allows then."""

    def keep(self, given: KeepPolicy) -> KeepPolicy: ...

    def mirrors(self, given: Sequence[Mirror]) -> Sequence[Mirror]: ...

    def unrestored(self, state: Capturable, why: str) -> None:
        """Act when the restore has failed or was refused."""

    def begin(self, state: Capturable, point: ResumePoint, wait: Wait) -> None: ...

    def step(self, state: Capturable, save: Save) -> None:
        """Act after a micro-step, in place of the schedule or, if `keeps_schedule`, before it."""

    def look(self, state: Capturable, save: Save) -> None:
        """Act before a save that the script asks for itself, and after the schedule has begun one."""

    def finished(self, progress: Progress) -> None:
        """Act after the script's final save."""


def hooks_of(url: str) -> Hooks | None:
    module, _, argument = os.environ.get(VARIABLE, "").partition(":")
    if not module:
        return None
    hooks: Hooks = importlib.import_module(module).hooks(argument, url)
    return hooks
