"""Rehearses one life of a user's script under ``ckptkit doctor`` or ``ckptkit replay`` and records a trace.

``CKPTKIT_HOOKS`` names this module and a JSON file, a `LifePlan`: see `ckptkit.manager.hooks`. While it is set, a
`ckptkit.CheckpointManager` works below the plan's scratch folder and never looks at the root that the script gave. Its
own schedule and its mirrors are off, unless the plan keeps them; the mirrors are scratch folders then. After every
micro-step it appends a line to the trace, saves where the plan says so, and kills or stops the process where the plan
says so.

Guarantees: a line of the trace survives a SIGKILL that follows it. In a job of many ranks, each rank has a trace of its
own; no rank goes on before a planned save is committed, and none dies before all have traced that micro-step. Training
thread only.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pydantic import BaseModel

from ckptkit.core.process_group import ALONE, World
from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.errors import ResumeError
from ckptkit.manager.hooks import VARIABLE, Save, Wait
from ckptkit.manager.options import Mirror
from ckptkit.manager.writer import NotEndedError
from ckptkit.run.catalog import list_checkpoints
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy
from ckptkit.snapshot import Capturable
from ckptkit.storage import Storage, open_storage
from ckptkit.tools.doctor.lives.trace import (
    Begun,
    KilledEvent,
    LifePlan,
    Refused,
    SavedEvent,
    Stepped,
    StoppedEvent,
    Unrestored,
    line_of,
    scratch_run,
    trace_of,
)

if TYPE_CHECKING:
    from ckptkit.mindspore.state.doctor_digests import StateObserver

_REPLAYED = "ckptkit_replayed"
_STEPS_AFTER_SAVE = 2
_A_WHILE = timedelta(seconds=5)  # frameworks abort a gather for which a rank is late, on CPU after 30 s


@dataclass
class Runs:
    """Holds what the managers of one process have to know of each other."""

    plan: LifePlan
    # The run root that is followed; None before one of those that may be has ended a micro-step
    followed: str | None = None
    restored: set[str] = field(default_factory=set)  # the run roots that were restored


class TrialProbe:
    """Replaces parts of a `ckptkit.CheckpointManager`'s behaviour under ``ckptkit doctor`` and ``replay``."""

    def __init__(self, runs: Runs, url: str) -> None:
        self._plan = runs.plan
        self._runs = runs
        self._url = url
        self._world: World = ALONE
        self._trace = Path(self._plan.trace)
        self._observer: StateObserver | None = None
        self._last = -1
        self._saves = 0  # of a replay, at the last micro-step
        self._is_saving = False
        self._has_stepped = False
        self._own_saves = OwnSaves()
        self._wait: Wait | None = None

    @property
    def storage(self) -> Storage:
        """The scratch folder that replaces the script's own root."""
        if self._plan.run is not None:
            return open_storage(Path(self._plan.run))
        return open_storage(scratch_run(Path(self._plan.root), self._url))

    @property
    def keeps_schedule(self) -> bool:
        """Whether the script's own schedule saves, too."""
        return self._plan.own_saves

    def keep(self, given: KeepPolicy) -> KeepPolicy:
        """Return what to keep; everything, if it is compared or copied afterwards."""
        return KeepLatest(sys.maxsize) if self._plan.run is not None else given

    def mirrors(self, given: Sequence[Mirror]) -> Sequence[Mirror]:
        """Return scratch mirrors, which are as fast as can be, if the script's own saves count; none otherwise."""
        return self._own_saves.scratch(Path(self._plan.root), given) if self._plan.own_saves else ()

    def unrestored(self, state: Capturable, why: str) -> None:
        """Record why no checkpoint was restored: a launcher may hide what its ranks print."""
        self._trace = trace_of(self._trace, state.world.rank)
        self._write(Unrestored(why=why))

    def begin(self, state: Capturable, point: ResumePoint, wait: Wait) -> None:
        """Record that the run was restored; raise ResumeError for a state that cannot be compared or a second root."""
        self._world, self._wait = state.world, wait
        self._trace = trace_of(self._trace, self._world.rank)
        self._last = point.batches_delivered
        self._runs.restored.add(self._url)
        if self._url in self._plan.others:
            return
        if self._plan.run is not None and len(self._runs.restored) > 1:
            self._refuse(
                f"it trains at {' and '.join(sorted(self._runs.restored))}, but a replay is of one run: take the other "
                "training out of the command"
            )
        if not hasattr(state, "observer"):
            self._refuse(
                f"the state is a {type(state).__name__}, which has no observer(): the doctor compares what a "
                "ckptkit.StateManager or a CheckpointCallback holds"
            )
        self._observer = observer = state.observer()
        ranks = self._world.size
        digests, _ = observer.observe()
        self._write(
            Begun(
                url=self._url,
                step=point.batches_delivered,
                checkpoint=point.checkpoint,
                suspects=tuple(observer.suspects()),
                digests=digests,
                ranks=ranks,
                replicated=tuple(observer.replicated()) if ranks > 1 else (),
                mirrors=self._own_saves.urls,
                environment=observer.environment(),
            )
        )

    def step(self, state: Capturable, save: Save) -> None:
        """Trace the micro-step that has just ended, then save, die or stop as planned.

        Raises ResumeError if batches are not counted, so that micro-steps cannot be told apart, and errors of the save.
        """
        if state.progress().batches_delivered == 0:
            self._refuse("the train cell's calls are not counted: call state.count_delivered(n) after every batch")
        self._look(state, save)

    def look(self, state: Capturable, save: Save) -> None:
        """Trace the micro-step that has just ended, if `step` has not, and remember that a save begins."""
        self._look(state, save)
        if self._runs.followed == self._url:
            self._own_saves.begin(self._last)

    def _look(self, state: Capturable, save: Save) -> None:
        """Trace the micro-step that has just ended, then save, die or stop; once per progress, or see `_replay`."""
        progress = state.progress()
        step = progress.batches_delivered
        if self._plan.run is not None:
            self._replay(progress, save)
            return
        if step == self._last:
            return
        self._last = step
        if self._runs.followed is None and self._url not in self._plan.others:
            self._runs.followed = self._url
        if self._runs.followed != self._url:
            if step in self._plan.saves:  # a killed process finds a checkpoint of each run
                self._settle(save({}).result)
            return
        assert self._observer is not None  # noqa: S101 - the manager requires restore() first
        digests, unseen = self._observer.observe()
        now = time.monotonic()
        began = {} if self._has_stepped else self._observer.began()
        self._has_stepped = True
        unstored = self._observer.unstored()
        self._write(
            Stepped(
                step=step,
                url=self._url,
                at=now,
                progress=progress,
                digests=digests,
                unseen=unseen,
                began=began,
                unstored=unstored,
            )
        )
        if step in self._plan.saves:
            self._save(step, digests, save)
        if step == self._plan.kill:
            self._die(step)
        if self._plan.kill_when_saved:
            self._die_once_saved(step)
        if step >= self._plan.stop or self._is_enough(step, now):
            self._stop(step)

    def finished(self, progress: Progress) -> None:
        """Stop after the final save of a replay: what the script does after training must not run."""
        if self._plan.run is not None and progress.batches_delivered >= self._plan.stop:
            self._stop(progress.batches_delivered)

    def _replay(self, progress: Progress, save: Save) -> None:
        """Save where the plan says so, and stop one micro-step after the last, or at the final save.

        Each of the script's own saves of the same moment, such as one after an evaluation, gives another checkpoint:
        with a metric of its own, none counts as committed already.
        """
        if self._is_saving:  # `save` looks, too
            return
        step = progress.batches_delivered
        if step != self._last:
            self._last, self._saves = step, 0
            self._write(Stepped(step=step, progress=progress, digests={}))
        if step > self._plan.stop:
            self._stop(step)
        if step in self._plan.saves:
            self._saves += 1
            self._is_saving = True
            self._settle(save({_REPLAYED: float(self._saves)}).result)
            self._is_saving = False

    def _die_once_saved(self, step: int) -> None:
        assert self._wait is not None  # noqa: S101 - as in `_look`
        if self._own_saves.is_due(step, self._plan.stop):
            self._settle(self._wait)
        stored = self._own_saves.stored(self.storage)
        if self._in_any_rank(bool(stored)):
            stored = stored or self._own_saves.stored(self.storage)  # another rank may have seen it first
            self._write(SavedEvent(step=max(stored, default=step)))
            self._die(step)

    def _is_enough(self, step: int, now: float) -> bool:
        """Return whether the time for the first life is over; all ranks stop after the same micro-step."""
        enough = self._plan.enough
        return enough is not None and step > 1 and self._in_any_rank(now >= enough)

    def _in_any_rank(self, mine: bool) -> bool:
        return mine if self._world.size == 1 else "yes" in self._world.gather("yes" if mine else "")

    def _stop(self, step: int) -> NoReturn:
        self._write(StoppedEvent(step=step))
        _end()

    def _save(self, step: int, before: dict[str, str], save: Save) -> None:
        assert self._observer is not None  # noqa: S101 - as in `_look`
        handle = save({})
        after, _ = self._observer.observe()
        moved = tuple(name for name, digest in after.items() if before.get(name) != digest)
        self._settle(handle.result)
        by = tuple(self._observer.drawing_in_state_dict()) if moved else ()
        stall_seconds = handle.report().cost.stall_seconds
        self._write(SavedEvent(step=step, moved=moved, by=by, stall_seconds=stall_seconds))

    def _settle(self, wait: Callable[[timedelta | None], object]) -> None:
        """Do ``wait`` until a save is stored, which only rank 0 knows: a rank that dies before would prevent it."""
        if self._world.size == 1:
            wait(None)
            return
        said = ["busy"]
        while "busy" in said:
            try:
                wait(_A_WHILE)
            except NotEndedError:
                mine = "busy"
            else:
                mine = "done"
            said = [*self._world.gather(mine)]

    def _die(self, step: int) -> None:
        """Kill this process, if its rank is to die."""
        if self._world.size > 1:
            self._world.gather("")  # a launcher ends the others at once: all have traced this micro-step first
            doomed = self._plan.kill_ranks
            if doomed is not None and self._world.rank not in doomed:
                return
        self._write(KilledEvent(step=step))
        os.kill(os.getpid(), signal.SIGKILL)

    def _refuse(self, why: str) -> NoReturn:
        self._write(Refused(why=why))
        raise ResumeError(why)

    def _write(self, event: BaseModel) -> None:
        # One write to the kernel: a SIGKILL cannot undo it, and lines do not mix.
        line = line_of(event)
        descriptor = os.open(self._trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)


class OwnSaves:
    """Watches the saves that a script makes by itself, and gives it scratch mirrors in place of its own.

    The script's own mirrors are never touched. A checkpoint counts once it is where the next life looks for it: at a
    mirror if there is one, since that life has no root, and otherwise at the root.
    """

    def __init__(self) -> None:
        self.urls: tuple[str, ...] = ()  # that the script gave of the mirrors in use
        self._mirrors: tuple[Mirror, ...] = ()
        self._since: int | None = None  # after which micro-step a save began that was not awaited

    def scratch(self, root: Path, given: Sequence[Mirror]) -> Sequence[Mirror]:
        """Return mirrors below ``root`` that replace those ``given``, and are as fast as can be."""
        self.urls = tuple(mirror.storage.url for mirror in given)
        places = zip(given, (scratch_run(root, url) for url in self.urls), strict=True)
        self._mirrors = tuple(replace(mirror, root=at, storage_options=None, bandwidth=None) for mirror, at in places)
        return self._mirrors

    def begin(self, step: int) -> None:
        """Note that a save begins after micro-step ``step``."""
        if self._since is None:
            self._since = step

    def is_due(self, step: int, last: int) -> bool:
        """Return whether to wait for a save now, after micro-step ``step`` of a life that ends after ``last``.

        Each save is waited for once: nothing may be uploaded yet, and then it is the next one's turn.
        """
        if self._since is None or step < min(self._since + _STEPS_AFTER_SAVE, last):
            return False
        self._since = None
        return True

    def stored(self, root: Storage) -> list[int]:
        """Return the micro-steps after which the checkpoints were made that a next life may resume from."""
        places = [mirror.storage for mirror in self._mirrors] or [root]
        progresses = (checkpoint.progress for place in places for checkpoint in list_checkpoints(place))
        return [progress.batches_delivered for progress in progresses if progress is not None]


def hooks(plan: str, url: str) -> TrialProbe:
    """Return the probe of a manager whose script gave ``url``; `ckptkit.manager.hooks` calls it.

    Raises ValueError if ``plan`` is not the path of a valid plan.
    """
    return TrialProbe(_runs(plan), url)


def variables(plan: Path) -> dict[str, str]:
    """Return the environment variables under which a script follows ``plan``."""
    return {VARIABLE: f"{__name__}:{plan}"}


@functools.lru_cache(maxsize=1)
def _runs(path: str) -> Runs:
    try:
        return Runs(LifePlan.model_validate(json.loads(Path(path).read_bytes())))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{VARIABLE} names {path}, which is not a plan of the doctor ({error}). Unset it, or run the script with "
            "`ckptkit doctor -- python train.py`"
        ) from error


def _end() -> NoReturn:
    # Exit at once: what the script does after training (export, upload) must not run in a rehearsal.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
