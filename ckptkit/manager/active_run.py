"""Runs one attempt in the training thread: saves when it is due or asked, raises what failed, and ends.

Guarantees: a background failure reaches the caller at one of the next calls. A call saves the state of its moment or
none. `ActiveRun.close` stops the watch for signals and the recorder whatever it raises. In a job of many ranks
`ActiveRun.save`, `ActiveRun.save_final`, `ActiveRun.agree`, and `ActiveRun.step` where a save is due, are collectives.
Training thread only.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta

from typing_extensions import Self

from ckptkit.core.progress import Progress
from ckptkit.core.progress_bar import countdown
from ckptkit.core.stack import call_of
from ckptkit.errors import Preempted, ResumeError
from ckptkit.format.events import How
from ckptkit.manager.background import NotEndedError, SaveHandle
from ckptkit.manager.final_save import FinalSave
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.hooks import Hooks, Save
from ckptkit.manager.options import WhenBusy
from ckptkit.manager.process.at_exit import AT_EXIT, LastCall
from ckptkit.manager.process.denormals import DenormalsAsZero
from ckptkit.manager.results import SaveResults
from ckptkit.manager.scheduler import DueSaves, Metrics, Scheduler, Services
from ckptkit.snapshot import Capturable, IncompleteStepError

_log = logging.getLogger("ckptkit")

_EXIT_PATIENCE = timedelta(seconds=5)


class ActiveRun:
    """Runs one attempt, from `CheckpointManager.restore` to `CheckpointManager.close`.

    Args:
        services: The parts that it shares with the scheduler and the final save.
        scheduler: Starts the saves.
        due_saves: Decides which saves are due.
        when_busy: What happens to a due save while the previous one is being written.
        monotonic: Gives seconds.
        began_at: Progress after the restore.
        hooks: Take the place of the schedule under ``ckptkit doctor``; None otherwise.
        denormals: Has begun; `close` ends it.

    Attributes:
        services: As the argument.
        scheduler: As the argument.
        final_save: Takes the final save of a preempted training.
        is_complete: Whether nothing was left to train.
        stepped_at: Number of batches delivered at the last `step`; None before.
    """

    def __init__(
        self,
        services: Services,
        scheduler: Scheduler,
        due_saves: DueSaves,
        *,
        when_busy: WhenBusy,
        monotonic: Callable[[], float],
        began_at: Progress,
        hooks: Hooks | None,
        denormals: DenormalsAsZero,
    ) -> None:
        self.services = services
        self.scheduler = scheduler
        self.final_save = FinalSave(scheduler, services)
        self._due_saves = due_saves
        self._when_busy = when_busy
        self._monotonic = monotonic
        self._began_at = began_at.batches_delivered
        self._hooks = hooks
        self._denormals = denormals
        self._process = os.getpid()
        self._is_finished = False
        self.is_complete = False
        self.stepped_at: int | None = None
        self._reached = began_at  # at the last step or save
        self._left_at = 0  # batches delivered when `CheckpointManager.loop` was left
        self._last_call = LastCall(self._exit)
        AT_EXIT.add(self._last_call)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked after the restore: it has the objects, but not the threads."""
        return os.getpid() != self._process

    def ready(self) -> Self:
        """Return itself; ResumeError if a call of it is in progress in this thread, such as below a signal handler.

        Half of what that call does is done, and a second one would take its place. ``on_save`` is called at the end.
        """
        call = call_of(_CALLS, self, sys._getframe(1), until=SaveResults.tell.__code__)
        if call is not None:
            raise ResumeError(
                f"the manager was called while its {call}() was in progress in the same thread: by a signal "
                "handler, a state_dict() or a finalizer. Set a flag there, and call the manager when that call has "
                "returned; Preemption(when=...) asks such a flag"
            )
        return self

    def step(self, state: Capturable, metrics: Metrics) -> SaveHandle | None:
        """See `CheckpointManager.step`."""
        handle = self._step(state, metrics)
        self.services.results.tell()
        self.services.step_timing.depart()
        return handle

    def heed(self, state: Capturable, metrics: Metrics, progress: Progress) -> bool:
        """See `CheckpointManager.heed_preemption`."""
        verdict = self.final_save.heed(progress)
        if verdict == "save":
            self.final_save.leave(state, metrics)
        return verdict != "train"

    def save(self, state: Capturable, metrics: Metrics) -> SaveHandle:
        """See `CheckpointManager.save`."""
        progress = self._reached = state.progress()
        HEARTBEAT.step(progress.batches_delivered, self.services.mirrors.lag)
        self.services.recorder.note(progress, metrics)
        self._due_saves.begin_cycle(state, progress)
        self._look(state, metrics)
        handle = self.scheduler.save(state, metrics)
        self.services.results.tell()
        return handle

    def save_final(self, state: Capturable, metrics: Metrics) -> str:
        """See `CheckpointManager.save_final`."""
        progress = self._reached = state.progress()
        HEARTBEAT.step(progress.batches_delivered, self.services.mirrors.lag)
        self._is_finished = True
        self.services.recorder.note(progress, metrics)
        self.services.recorder.flush_next()
        self._due_saves.begin_cycle(state, progress)
        self._look(state, metrics)
        name = self.final_save.commit(state, metrics)
        self.services.results.tell()
        if self._hooks is not None:
            self._hooks.finished(progress)
        self.final_save.leave_after(name, progress)
        return name

    def leave(self, batches: int, *, for_good: bool) -> None:
        """Note that `CheckpointManager.loop` was left after so many ``batches``; if ``for_good``, give signals back."""
        if not self.is_forked:
            self._left_at = batches
            self.services.step_timing.pause()
            if for_good:
                self.services.preemption.end()

    def agree(self, wish: bool) -> bool:
        """See `CheckpointManager.agree`."""
        return any(self.services.rank_sync.flags(wish))

    def wait(self, timeout: timedelta | None) -> None:
        """See `CheckpointManager.wait`."""
        left = countdown(timeout)
        self.services.results.drain(timeout)
        self._collect()
        with HEARTBEAT.during(Phase.STORAGE):
            self.services.mirrors.settle(left)
        self._collect()
        self.services.results.tell()

    def close(self, timeout: timedelta | None, *, ended_by: BaseException | None) -> None:
        """See `CheckpointManager.close`.

        Args:
            timeout: Limit of the wait.
            ended_by: The error that ended training, or None.
        """
        quietly = ended_by is not None
        left = countdown(timeout := self._limited(timeout))
        self.services.mirrors.end(is_given_up=self.final_save.is_mirror_given_up)
        try:
            self.wait(timeout)
            if not self.final_save.is_mirror_given_up:
                with HEARTBEAT.during(Phase.STORAGE):
                    self.services.mirrors.finish(left)
            self.services.results.refuse_ended()  # after the wait: no rank may leave the others alone
        except NotEndedError:
            if not self.final_save.is_over:
                raise
            if self.services.preemption.exits:  # the grace is over, and the exit of the interpreter would wait again
                self.services.mirrors.abandon()
        except BaseException:
            quietly = True  # a signal must not end the process before its traceback is shown
            raise
        finally:
            self._denormals.end()  # first: what follows may raise
            self.services.copy_memory.end()
            self.services.preemption.end(quietly=quietly)
            self.scheduler.fence(patient=False)  # only after a timeout is anything left to fence
            error = ended_by or sys.exc_info()[1]
            AT_EXIT.discard(self._last_call)
            how: How | None = "preempted" if self.final_save.is_over else "complete" if self.is_complete else None
            self.services.recorder.close(error, left, how=how)
            self._show_end(error)
        if ended_by is None:
            self._tell_left()

    def _tell_left(self) -> None:
        newest = self.services.saver.newest
        saved = newest is not None and newest.reaches(self._reached)
        if self._left_at == 0 or (saved and self._reached.batches_delivered >= self._left_at):
            return
        _log.warning(
            "the loop was left in batch %d, before its end, and %s. The next start trains again what came after. If "
            "training ends there, write `with ck.CheckpointManager(...) as manager:` around the loop, call "
            "manager.step(state) before the break, and manager.save_final(state) after the loop",
            self._left_at,
            f"the newest checkpoint is {newest}" if newest is not None else "this start has saved nothing",
        )

    def _exit(self) -> None:
        """Record how the program ends, which has not closed the manager."""
        # In an interactive session the last traceback need not be what ends the program.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        how: How = "preempted" if self.final_save.is_over else "exited"
        self.services.recorder.close(error, countdown(_EXIT_PATIENCE), how=how)

    def _show_end(self, error: BaseException | None) -> None:
        if self.final_save.is_over and (error is None or isinstance(error, Preempted)):
            how = "preempted"
        elif error is not None:
            HEARTBEAT.fail(error)
            how = "failed"
        else:
            how = "complete" if self.is_complete else "finished" if self._is_finished else "closed"
        HEARTBEAT.end(how, self.services.mirrors.lag)

    def _limited(self, timeout: timedelta | None) -> timedelta | None:
        """Return the limit of the last wait: a preempted process must exit within its grace."""
        if self.final_save.is_given_up:
            return timedelta(0)  # the grace is over; the work under way goes on until the process ends
        if self.final_save.is_over and self.services.preemption.exits:
            # Everything is settled; a mirror or the events must not delay the exit beyond the grace.
            return min(self.services.preemption.left, timeout if timeout is not None else timedelta.max)
        return timeout

    def _step(self, state: Capturable, metrics: Metrics) -> SaveHandle | None:
        progress = state.complete_step()  # first: an earlier save that failed says nothing against this batch
        self._reached, self.stepped_at = progress, progress.batches_delivered
        HEARTBEAT.step(progress.batches_delivered, self.services.mirrors.lag)
        self._collect(tolerate=self.services.preemption.is_asked)
        self.services.recorder.note(progress, metrics)
        self.services.step_timing.arrive(progress.accumulation_steps)
        if progress.at_boundary:
            self.services.auto_interval.see(progress.cycles)
        self._due_saves.begin_cycle(state, progress)
        self.services.copy_memory.prepare(state, self.scheduler.handling)
        self.scheduler.advance(progress.accumulation_steps - progress.micro_step)
        if self._hooks is not None:
            self._hooks.step(state, self._saving(state, metrics))
            if not self._hooks.keeps_schedule:
                return None
        if progress.batches_delivered == self._began_at:
            raise ResumeError(
                f"step() was called, but the state is still at {self._began_at} batches, as after the restore. Feed "
                "the loop from ckptkit.data.resumable, or call state.count_delivered() after each batch"
            )
        if self.final_save.is_held or self.heed(state, metrics, progress):
            return None
        handle = self._save_if_due(state, metrics, progress)
        if self._hooks is not None and handle is not None:
            self._hooks.saving()
        return handle

    def _save_if_due(self, state: Capturable, metrics: Metrics, progress: Progress) -> SaveHandle | None:
        since = timedelta(seconds=self._monotonic() - self.scheduler.last_at)
        if not self._due_saves.is_due(progress, since):
            return None
        stored_at = self._due_saves.stored_at(progress)
        rewound = stored_at != progress
        if self.services.rank_sync.is_alone:  # without waiting for the device, which a capture does
            newest = self.services.saver.newest
            if newest is not None and newest.reaches(stored_at):
                return None
            if self.services.results.in_flight is not None and self._when_busy == "skip":
                self.scheduler.skip(progress, since)
                return None
        try:
            return self.scheduler.save_due(state, metrics, rewound=rewound, waits=self._when_busy == "wait")
        except IncompleteStepError:
            if not self.services.rank_sync.is_alone:
                raise
            _log.info("step() was called while an error or a signal was being handled: the save waits for the next one")
            return None

    def _look(self, state: Capturable, metrics: Metrics) -> None:
        if self._hooks is not None:
            self._hooks.look(state, self._saving(state, metrics))

    def _saving(self, state: Capturable, metrics: Metrics) -> Save:
        """Return what saves ``state`` with ``metrics`` and those that the hooks add."""
        return lambda more: self.save(state, {**(metrics or {}), **more})

    def _collect(self, *, tolerate: bool = False) -> None:
        self.services.mirrors.collect(tolerate=tolerate)
        self.services.results.collect(tolerate=tolerate)


_CALLED = ("step", "save", "save_final", "heed", "agree", "wait", "close")
_CALLS = {id(getattr(ActiveRun, name).__code__): name for name in _CALLED}
