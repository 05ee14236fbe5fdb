"""Provides `CheckpointManager`: schedule, background writer, backpressure and error handling behind a few methods.

Once `save` has returned, training may go on: what it may change before its next update is copied; what only the update
changes is read in place until the fence, which runs before the update. In a job of many ranks each rank has a manager
over the same root; `restore`, `save`, `save_final`, `agree` and `step` are collectives: every rank calls them at the
same micro-step. Training thread only; the writer has its own thread, which does not use the framework.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

from typing_extensions import Self

from ckptkit.core.progress import ResumePoint
from ckptkit.core.save_policy import SaveEvery, SavePolicy
from ckptkit.core.save_report import SaveTotals
from ckptkit.errors import CkptKitError, ResumeError
from ckptkit.format.layout import CHECKPOINTS
from ckptkit.manager.hooks import hooks_of
from ckptkit.manager.mirrors import Chain
from ckptkit.manager.options import (
    Mirrors,
    Preemption,
    Ranks,
    Saving,
    System,
    mirrors_of,
    refuse_other_types,
    refuse_wrong_policies,
)
from ckptkit.manager.run import Run, Setup, open_run
from ckptkit.manager.writer import SaveHandle
from ckptkit.run.catalog import CheckpointInfo, latest_checkpoint, list_checkpoints
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy, rankings
from ckptkit.run.resolve import BEST, LATEST
from ckptkit.snapshot import Capturable, StagingArea
from ckptkit.storage import Storage, open_storage
from ckptkit.storage.capacity import free_beside

_log = logging.getLogger("ckptkit")


class CheckpointManager:
    """Saves and restores one run.

    Before `restore`, and after `close`, methods that need the run raise ResumeError. A background failure reaches the
    next call: SaveFailedError if too many saves in a row have failed (`Saving`), StaleAttemptError if another process
    took over the run.

    Args:
        root: The run root: a path, a URL, or a `ckptkit.storage.Storage`.
        save: When `step` saves; default every 100 cycles, and every ten minutes if that takes at most 1 % of the time.
        keep: What retention keeps after each commit; default the latest 3.
        storage_options: For the storage's backend.
        saving: How saves are taken and reported.
        mirror: A second root, usually remote, that follows the first one, usually a local one: a path, a URL, a
            `ckptkit.storage.Storage`, or a `Mirror` to give its options; or several of them, the nearest first.
        ranks: What matters in a job of many ranks.
        preemption: What happens after SIGTERM or SIGUSR1.
        system: Time, chance and names, for tests.

    Raises:
        ValueError: If an option has an invalid value.
        StorageError: If a root's URL has no backend.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Storage,
        *,
        save: SavePolicy | None = None,
        keep: KeepPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
        saving: Saving | None = None,
        mirror: Mirrors = None,
        ranks: Ranks | None = None,
        preemption: Preemption | None = None,
        system: System | None = None,
    ) -> None:
        refuse_wrong_policies(save=save, keep=keep)
        groups = {"ranks": (ranks, Ranks), "preemption": (preemption, Preemption), "system": (system, System)}
        refuse_other_types(saving=(saving, Saving), **groups)
        saving, preemption, system = saving or Saving(), preemption or Preemption(), system or System()
        keep = keep if keep is not None else KeepLatest(3)
        storage, mirrors = open_storage(root, storage_options), mirrors_of(mirror)
        hooks = hooks_of(storage.url)  # None except under `ckptkit doctor` and `replay`
        if hooks is not None:
            storage, keep, mirrors = hooks.storage, hooks.keep(keep), hooks.mirrors(mirrors)
            saving, preemption = replace(saving, events=False), replace(preemption, then="off")
        free_bytes = partial(free_beside, storage, CHECKPOINTS)
        self._setup = Setup(
            storage,
            Chain(storage, mirrors, keep, tolerant=saving.on_error == "warn", system=system),
            StagingArea(saving.buffer_bytes, system.monotonic, is_remote=storage.is_remote, free_bytes=free_bytes),
            save if save is not None else SaveEvery(optimizer_steps=100, interval=timedelta(minutes=10), overhead=0.01),
            keep,
            saving,
            ranks or Ranks(),
            preemption,
            system,
            hooks,
        )
        self._run: Run | None = None
        self._closed = False
        self._nothing_left_at: ResumePoint | None = None  # where `restore` took nothing over

    @property
    def url(self) -> str:
        """URL of the run root."""
        return self._setup.storage.url

    @property
    def skipped_saves(self) -> int:
        """Number of writes during which another save was due and skipped."""
        return 0 if self._run is None else self._run.results.skipped_saves

    @property
    def totals(self) -> SaveTotals:
        """Total cost of this manager's saves."""
        return SaveTotals() if self._run is None else self._run.results.totals

    @property
    def mirror_lag(self) -> int:
        """Number of commits since the newest one that is known to be at every mirror; 0 without ``mirror=``."""
        return self._setup.mirrors.lag

    @property
    def preempted(self) -> bool:
        """Whether training was asked to end and its final save is settled; nothing more is to be trained."""
        return self._run is not None and self._run.is_over

    def restore(
        self, state: Capturable, *, checkpoint: str | int = LATEST, rewind: bool = False, watch_preemption: bool = True
    ) -> ResumePoint:
        """Apply the newest usable checkpoint to ``state``, if there is one, and take over the run.

        If ``state`` knows that nothing is left to train, the run is taken over only from a process that is known to
        have ended; otherwise the point is ``complete``, and nothing can be saved.

        Call it once, before the first save. A newer checkpoint that is corrupt is skipped with a warning. The log says
        where the run continues; without logging in the program, that goes to stderr.

        Args:
            state: State to restore; unchanged on a fresh start.
            checkpoint: ``"latest"``, or a name from `checkpoints`, the beginning of one, an optimizer step, or
                ``"best"`` by `KeepBest` or ``"best:METRIC:max"``: the run then continues from there, also when the
                same call is repeated after an interruption.
            rewind: Go back to it even if the run already went on from there.
            watch_preemption: Whether to watch for signals and `Preemption.when` from the end of this call until
                `close`; otherwise call `watch_preemption` when training begins.

        Raises:
            CheckpointNotFoundError: If the named checkpoint does not exist.
            CorruptCheckpointError: If no checkpoint of the run is usable; names the first ones. ``state`` may hold half
                of one of them, and then refuses to be used until a restore succeeds.
            StateMismatchError: If the checkpoint does not fit ``state``; nothing was changed.
            ResumeError: If the run could not continue exactly, or this manager already has a run.
            StaleAttemptError: If another start overtook this one.
            StorageError: If the storage failed, or a required mirror cannot be reached.
        """
        if self._run is not None or self._closed:
            raise ResumeError("this manager has restored already or is closed; make a new one to start again")
        hooks = self._setup.hooks
        if hooks is not None:
            checkpoint, rewind = LATEST, False  # the script's checkpoint names do not exist in a scratch folder
        best = rankings(self._setup.keep)
        if checkpoint == BEST and len(best) == 1:
            checkpoint = f"{BEST}:{best[0].metric}:{best[0].mode}"
        self._run, point = open_run(self._setup, state, str(checkpoint), rewind=rewind)
        self._nothing_left_at = point if self._run is None else None
        if hooks is not None and self._run is not None:
            hooks.begin(state, point, self._run.wait)
        if watch_preemption and self._run is not None:
            self.watch_preemption()
        return point

    def watch_preemption(self) -> None:
        """Watch SIGTERM, SIGUSR1 and `Preemption.when` until `close`; each requests a final save and the end.

        `close` restores the earlier handlers. Signals can be watched in the main thread only.
        """
        self.live().preemption.begin()

    def step(self, state: Capturable, metrics: Mapping[str, float] | None = None) -> SaveHandle | None:
        """Save if a save is due, and raise background failures; call this after every micro-step.

        After a signal, saves the state, at the end of the cycle if that fits into ``grace``, and ends training.

        Args:
            state: State to save.
            metrics: Numbers, or tensors of one element, such as ``{"loss": loss}``: recorded at every micro-step for
                ``ckptkit report``, and stored in the checkpoint if one is saved. A tensor may be read later, so that
                nothing waits for the device.

        Returns:
            The save that this call started, or None.

        Raises:
            ResumeError: If no micro-step was counted since the restore, so that no save would ever be due.
            Preempted: After a signal; see `Preemption`.
        """
        return self.live().ready().step(state, metrics)

    def pause(self) -> None:
        """Exclude what follows, such as an evaluation, from the measured duration of the next micro-step."""
        if self._run is not None:
            self._run.end_schedule.pause()

    def declare_complete(self) -> None:
        """Declare that nothing is left to train, for the report; call it between `restore` and `close`."""
        if self._nothing_left_at is None:
            self.live().is_complete = True

    def save(self, state: Capturable, metrics: Mapping[str, float] | None = None) -> SaveHandle:
        """Take ``state`` as it is now and write it in the background; first waits for a save under way.

        What only an update changes may be read in place: see `fence`. A state that is committed already is not written
        again, unless ``metrics`` has what that checkpoint lacks: then it gets a second one, with these metrics.

        Raises:
            ResumeError: If `ckptkit.data.resumable` handed out a batch and `step` was not called after it; in any other
                loop, if an error or a signal is being handled.
            TypeError, ValueError: If a metric is not a number, or the state cannot be stored, for example because two
                leaves have the same name.
        """
        return self.live().ready().save(state, metrics)

    def observe(self, micro_step: Mapping[str, Any], cycle: Mapping[str, Any] | None = None) -> None:
        """Pass values that the next `step`, `save` or `save_final` records for ``ckptkit report`` but does not store.

        Args:
            micro_step: Numbers or tensors of one element by name, of one micro-step; a cycle's value is their mean.
            cycle: The same, of the whole cycle that it ended.
        """
        if self._run is not None:
            self._run.recorder.seen = micro_step, cycle or {}

    def agree(self, wish: bool) -> bool:
        """Return whether any rank wishes something, such as to stop; every rank must call it at the same point.

        In a job of one rank it returns ``wish`` and costs nothing.
        """
        return self.live().ready().agree(wish)

    @property
    def ranks(self) -> int:
        """Number of ranks of the job; known once `restore` was called."""
        return 1 if self._run is None else self._run.rank_sync.size

    def live(self) -> Run:
        """Return the live run, for callbacks, which need more of it than the methods here.

        What may be called within another call, by a signal handler, asks it whether it is `Run.ready`.
        """
        run = self._run
        if run is not None and not self._closed and run.process == os.getpid():
            return run
        self._refuse_forked()
        if self._nothing_left_at is not None:
            raise ResumeError(
                f"nothing was left to train at {self.url}, so restore() did not take the run over from a process that "
                "may be alive, and this one cannot save there. To train on, give more epochs, or another root"
            )
        raise ResumeError(
            "call restore(state) before the first save, and not after close(): it finds out what the run holds"
        )

    def fence(self) -> None:
        """Make sure that nothing reads live memory any more; call this before changing parameters yourself.

        A train cell that knows its updates calls it by itself. Other code that writes to the weights or the optimizer's
        state between two micro-steps (to swap in averaged weights, to clip them) must call it first. Without a save
        under way it does nothing.
        """
        if self._run is not None:
            self._run.ready().fence()

    def save_final(self, state: Capturable, metrics: Mapping[str, float] | None = None) -> str:
        """Save ``state`` and wait for the commit, retrying within the error budget; returns the checkpoint's name.

        For the end of training, after which no later save makes up for a failed one. See `save` for a committed state.

        Raises:
            SaveFailedError: If the state could not be committed, or not be uploaded to the mirror.
            ResumeError: As in `save`.
            Preempted: After a signal, once the state is committed; see `Preemption`.
        """
        left = self._nothing_left_at
        if left is not None and left.checkpoint and left.batches_delivered == state.progress().batches_delivered:
            return left.checkpoint
        return self.live().ready().save_final(state, metrics)

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait until no save and no upload of the newest commit is under way; a failed upload is tried once more.

        In a job of many ranks it waits for this rank's part, on rank 0 for all parts and the commit. Too many failures
        are raised by the next save of all ranks, or by `close`.

        Raises:
            TimeoutError: If ``timeout`` expires; the save or upload goes on.
        """
        self._refuse_forked()
        if self._run is not None:
            self._run.ready().wait(timeout)

    def close(self, timeout: timedelta | None = None) -> None:
        """Wait as `wait` does, then let the writer thread end; the manager saves no more.

        In a forked process it does nothing, because the save runs in the process that trains.

        Raises:
            SaveFailedError: Also if the newest commit cannot be uploaded to the mirror.
            TimeoutError: As in `wait`.
        """
        self._close(timeout, None)

    def _close(self, timeout: timedelta | None, ended_by: BaseException | None) -> None:
        if self._is_forked:
            return
        run = None if self._run is None else self._run.ready()
        try:
            if run is not None:
                run.close(timeout, ended_by=ended_by)
        finally:
            self._closed = True

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return every committed checkpoint, oldest first, including those off the lineage and at mirrors."""
        return list_checkpoints(self._setup.mirrors.everywhere)

    def latest(self) -> CheckpointInfo | None:
        """Return the checkpoint that a start would try first, or None if there is none."""
        return latest_checkpoint(self._setup.mirrors.everywhere)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None and error is not None and not self._is_forked:
            self._run.patience.hurry()
        try:
            self._close(None, error)
        except Exception as also:  # on_save's own too: none may hide the first error
            if error is None:
                raise
            if also is error:
                return  # the same error again, such as that another process took over the run
            theirs = None if isinstance(also, CkptKitError) else also
            _log.warning("while another error was being raised: %s", also, exc_info=theirs)

    @property
    def _is_forked(self) -> bool:
        return self._run is not None and not self._closed and self._run.process != os.getpid()

    def _refuse_forked(self) -> None:
        if self._is_forked:
            raise ResumeError(
                f"this process was forked from the one that trains and saves to {self.url}, and only that process "
                "may save there. Do not use the manager in child processes, or make a new one here with its own root"
            )
