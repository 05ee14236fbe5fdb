"""Runs one attempt in the training thread: saves when it is due or asked, raises what failed, and ends: `Run`.

A save takes the state of its moment, opens the window in which unchanged memory is read in place, and starts the
writer, which has a thread of its own. One save at a time is under way; a background failure reaches the caller at one
of the next calls. In a job of many ranks, either all ranks take the same moment under the same name or none takes any;
`Run.save`, `Run.save_final`, `Run.agree` and `open_run` are collectives, and `Run.step` may be one at any micro-step.
Training thread only.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Literal, TypeAlias

from typing_extensions import Self

from ckptkit.checkpoint.receipts import Receipts
from ckptkit.checkpoint.write import SaveRequest
from ckptkit.core.active_calls import call_of
from ckptkit.core.contents import Capture, Contents
from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.core.save_policy import SavePolicy, automatic
from ckptkit.core.save_report import SaveCost, SaveReport
from ckptkit.core.text import many
from ckptkit.core.waiting import Countdown, Patience, countdown
from ckptkit.errors import CkptKitError, Preempted, ResumeError, SaveFailedError, StaleAttemptError, StorageError
from ckptkit.format.events import Began, How, Spent
from ckptkit.format.layout import CHECKPOINTS, CheckpointName
from ckptkit.manager.agreement import RankStatus, RankSync
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.manager.hooks import Hooks, Save
from ckptkit.manager.mirrors import Chain
from ckptkit.manager.options import ERROR_BUDGET, Preemption, Ranks, Saving, System, WindowUse
from ckptkit.manager.preemption import PreemptionRequest
from ckptkit.manager.preemption_schedule import EndSchedule
from ckptkit.manager.process import AT_EXIT, DenormalsAsZero, LastCall, show_log
from ckptkit.manager.recorder import Recorder
from ckptkit.manager.save_schedule import SaveSchedule
from ckptkit.manager.writer import NotEndedError, SaveHandle, SaveResults, account_of
from ckptkit.run.attempt import Opened, Opening, RankFailure, follow, lead
from ckptkit.run.event_log import EventLog
from ckptkit.run.interval import History, read_history
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.run.retention import Retention, sweep
from ckptkit.run.saver import PartSaver, Saver
from ckptkit.snapshot import Capturable, Handling, IncompleteStepError, StagingArea, Window
from ckptkit.storage import Storage
from ckptkit.storage.capacity import limit_at

_log = logging.getLogger("ckptkit")

Metrics: TypeAlias = Mapping[str, float] | None

A_WHILE = timedelta(seconds=5)  # far below the timeout of any collective
_EXIT_PATIENCE = timedelta(seconds=5)
_ENDLESS = countdown(None)


@dataclass(frozen=True)
class Setup:
    storage: Storage
    mirrors: Chain
    area: StagingArea
    save: SavePolicy
    keep: KeepPolicy
    saving: Saving
    ranks: Ranks
    preemption: Preemption
    system: System
    hooks: Hooks | None
    denormals: DenormalsAsZero = field(default_factory=DenormalsAsZero)


@dataclass(frozen=True)
class _Moment:
    capture: Capture
    metrics: Mapping[str, float]
    replicas: str | None  # digest of what must be the same in all ranks, if that is compared
    begun: float  # seconds
    is_final: bool  # nothing follows


class _LateError(Exception):
    """Raised when the grace is over."""


class Run:
    def __init__(self, setup: Setup, opened: Opened, rank_sync: RankSync, *, began_at: Progress) -> None:
        saving, url = setup.saving, setup.storage.url
        self._setup, self._monotonic, self._hooks = setup, setup.system.monotonic, setup.hooks
        self._began_at = began_at.batches_delivered
        self.rank_sync, self.mirrors = rank_sync, setup.mirrors
        began = Began(
            at=setup.system.clock().isoformat(),
            checkpoint=opened.document.parent,
            progress=began_at,
            world_size=rank_sync.size,
            uptime_seconds=max(0.0, self._monotonic()),
            boot=setup.system.boot,
            born_seconds=max(0.0, HEARTBEAT.born),
            spent=HEARTBEAT.spent(),
        )
        log = EventLog(setup.storage, opened.document) if saving.events and rank_sync.leads else None
        self.recorder = Recorder(log, began, clock=setup.system.clock, monotonic=self._monotonic)
        self.patience = Patience(setup.ranks.patience)
        self.saver = _new_saver(setup, opened, rank_sync, self.patience)
        saver, restored = self.saver, None if opened.contents is None else opened.contents.checkpoint

        def newest() -> str | None:  # without this run, which would be in a cycle of references
            return restored if saver.newest is None else str(saver.newest)

        allowed = ERROR_BUDGET if saving.on_error == "warn" else 1
        self.results = SaveResults(url, allowed, saving.on_save, rank_sync, newest=newest)
        self.preemption = PreemptionRequest(setup.preemption, newest=newest, url=url, monotonic=self._monotonic)
        self.end_schedule = EndSchedule(self.preemption, rank_sync, self.results, self._monotonic)
        chooses_interval = automatic(setup.save) is not None and rank_sync.leads
        self.schedule = SaveSchedule(
            setup.save,
            saving.mid_cycle,
            rank_sync,
            self.results,
            read_history(setup.storage, opened.document.attempt) if chooses_interval else History(),
            clock=setup.system.clock,
            monotonic=self._monotonic,
            record=self.recorder.interval,
        )
        self.schedule.begin(began_at)
        self.is_held = False  # training goes on after a request to end, because the regular final save follows soon
        self.is_over = False  # the final save is settled; nothing more is to be trained
        self._is_given_up = False  # it, or its upload, failed or was not in time: `close` must not wait or try again
        self._failure: BaseException | None = None  # of this rank's last try of it
        # With "late", leaves are read only when the fence or a wait requires it: whatever changes them is seen.
        is_examined = setup.hooks is not None and setup.hooks.keeps_schedule  # ``ckptkit doctor --own-saves``
        is_late = saving.window == "auto" and is_examined
        self.window_use: WindowUse | Literal["late"] = "late" if is_late else saving.window
        self._window: Window | None = None
        self._number = 0
        self.last_save_at = self._monotonic()  # its start
        self.process = os.getpid()  # another one is forked from it
        self._is_finished = False
        self.is_complete = False  # nothing was left to train
        self._is_prepared = False
        self._reached = began_at  # at the last step or save
        self._left_at = 0  # batches delivered when a loop was left
        self._last_call = LastCall(self._exit)

    def ready(self) -> Self:
        """Return itself; ResumeError if a call of it is in progress in this thread, such as below a signal handler.

        Half of what that call does is done, and a second one would take its place. ``on_save`` is called at the
        end.
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
        progress = state.complete_step()  # first: an earlier save that failed says nothing against this batch
        self._reached = progress
        HEARTBEAT.step(progress.batches_delivered, lambda: self.mirrors.lag)
        self._collect(tolerate=self.preemption.is_asked)
        self.recorder.note(progress, metrics)
        self.end_schedule.arrive(progress.accumulation_steps)
        if progress.micro_step == 0:
            self.schedule.see(progress.cycles)
            self.schedule.begin_cycle(state, progress)
        if not self._is_prepared:
            self._is_prepared = True
            self._setup.area.prepare(state.leaves(at_boundary=True), self._handling())
        window = self._window
        if window is not None and window.by_slices and self.window_use != "late":
            window.advance(progress.accumulation_steps - progress.micro_step)
        if self._hooks is not None:
            self._hooks.step(state, self._saving(state, metrics))
        handle = None
        if self._hooks is None or self._hooks.keeps_schedule:
            if progress.batches_delivered == self._began_at:
                raise ResumeError(
                    f"step() was called, but the state is still at {self._began_at} batches, as after the restore. "
                    "Feed the loop from ckptkit.data.resumable, or call state.count_delivered() after each batch"
                )
            since = timedelta(seconds=self._monotonic() - self.last_save_at)
            is_ending = self.is_held or self.end_if_asked(state, metrics, progress)
            if not is_ending and self.schedule.is_due(progress, since):
                with self._stalling():
                    meeting = self._meet_due(state, metrics, progress)
                    handle = self._begin(state, *meeting) if meeting is not None else None
            if self._hooks is not None and handle is not None:
                self._hooks.look(state, self._saving(state, metrics))
        if self.results.unreported:
            self.results.tell()
        self.end_schedule.depart()
        return handle

    def end_if_asked(self, state: Capturable, metrics: Metrics, progress: Progress) -> bool:
        """Save and end training if that was requested and it is time; return whether the end was requested."""
        if not self.preemption.is_watched or self.is_over or self.is_held:
            return False
        verdict = self.end_schedule.verdict(progress)
        if verdict == "save":
            self._leave(state, metrics)
        return verdict != "train"

    def save(self, state: Capturable, metrics: Metrics) -> SaveHandle:
        self._begin_save(state, metrics)
        handle = self._save(state, metrics)
        self.results.tell()
        return handle

    def save_final(self, state: Capturable, metrics: Metrics) -> str:
        self._is_finished = True
        progress = self._begin_save(state, metrics)
        self.recorder.flush_next = True
        outcome = self._settle(state, metrics, _ENDLESS)
        if outcome.committed is None:
            raise SaveFailedError(
                f"the final save failed ({ERROR_BUDGET} in a row): {outcome.failure.removesuffix('.')}. Repair the "
                f"storage. {self.preemption.account()}"
            ) from self._failure
        meets = self.preemption.is_watched and not self.is_over
        try:
            self.mirrors.finish(_ENDLESS)
        except CkptKitError:
            if meets:
                self.rank_sync.flags(self.preemption.is_asked)  # the other ranks wait for this one below
            raise
        self.results.tell()
        if self._hooks is not None:
            self._hooks.finished(progress)
        asked = self.preemption.is_asked
        if meets and any(self.rank_sync.flags(asked)):
            if not asked:
                self.preemption.ask("another rank was asked to end")
            self._end(outcome, progress)
        return outcome.committed

    def _leave(self, state: Capturable, metrics: Metrics) -> None:
        """Take the final save after a request to end, as far as the grace allows, and end."""
        # With "exit", a thread ends the process at the end of the grace.
        left = _ENDLESS if self.preemption.exits else self.preemption.seconds_left
        try:
            outcome = self._settle(state, metrics, left)
        except _LateError:
            self._is_given_up = True
            outcome = RankStatus(
                failure="it was not committed within the grace period, and continues in the background"
            )
        try:
            if outcome.committed is not None:
                self.mirrors.finish(left)
        except (SaveFailedError, NotEndedError) as error:
            self._is_given_up = True  # after this, nothing ends the process at the end of the grace
            _log.warning("the checkpoint is committed, but not at the mirror yet: %s", account_of(error))
        self._end(outcome, state.progress())

    def _settle(self, state: Capturable, metrics: Metrics, left: Countdown) -> RankStatus:
        """Save in all ranks until that is committed or has failed too often; return the outcome, which rank 0 knows."""
        outcome = RankStatus()
        self.results.forgive()
        for _ in range(ERROR_BUDGET):
            handle = self._save(state, metrics, left, is_final=True)
            outcome, *_ = self._when_idle(partial(self._meet_after, handle), left)
            self._failure = handle.exception()
            if outcome.committed is not None:
                break
        return outcome

    def _meet_after(self, handle: SaveHandle, *, is_late: bool) -> list[RankStatus]:
        """Tell all ranks how this rank's part of the final save ended; a takeover ends all of them."""
        if self.results.busy:
            return self.rank_sync.exchange_statuses(RankStatus(busy=True, late=is_late), None)
        error = handle.exception()
        self._collect(tolerate=True)
        if isinstance(error, StaleAttemptError):
            return self.rank_sync.exchange_statuses(RankStatus(end=RankFailure.of(error)), error)
        mine = RankStatus(committed=handle.result()) if error is None else RankStatus(failure=account_of(error))
        return self.rank_sync.exchange_statuses(mine, None)

    def _when_idle(self, meet: Callable[..., list[RankStatus]], left: Countdown) -> list[RankStatus]:
        """Meet the other ranks again and again until none writes any more.

        No rank waits for another rank's storage inside a gather, because frameworks abort it (on CPU after 30 s). Every
        rank waits a little for its own writer, and all meet again.
        """
        while True:
            self._wait_a_while(left)
            statuses = meet(is_late=left() <= 0)
            if not any(status.busy for status in statuses):
                return statuses
            if any(status.busy and status.late for status in statuses):
                raise _LateError

    def _end(self, outcome: RankStatus, progress: Progress) -> None:
        preemption = self.preemption
        preemption.settle()
        self.is_over = True
        if outcome.committed is not None:
            message = (
                f"{preemption.why}: saved {outcome.committed} at {preemption.url} (epoch {progress.epoch}, batch "
                f"{progress.batch}, micro-step {progress.micro_step} of {progress.accumulation_steps}). The same "
                "command continues from it"
            )
        else:
            message = f"{preemption.why}: the last save failed: {outcome.failure}. {preemption.account()}"
        _log.warning("%s", message)
        self.results.tell()
        if preemption.exits:
            raise Preempted(message, outcome.committed)

    def _begin_save(self, state: Capturable, metrics: Metrics) -> Progress:
        progress = self._reached = state.progress()
        HEARTBEAT.step(progress.batches_delivered, lambda: self.mirrors.lag)
        self.recorder.note(progress, metrics)
        self.schedule.begin_cycle(state, progress)
        if self._hooks is not None:
            self._hooks.look(state, self._saving(state, metrics))
        return progress

    def leave(self, batches: int) -> None:
        """Note that a loop was left after so many ``batches``, and give signals back."""
        if self.process == os.getpid():
            self._left_at = batches
            self.end_schedule.pause()
            self.preemption.end()

    def agree(self, wish: bool) -> bool:
        return any(self.rank_sync.flags(wish))

    def wait(self, timeout: timedelta | None, *, for_uploads: bool = True) -> None:
        left = countdown(timeout)
        self.results.drain(timeout)
        self._collect()
        if for_uploads:
            self.mirrors.settle(left)
        self._collect()
        self.results.tell()

    def fence(self) -> None:
        if self._window is not None:
            with self._stalling():
                self._window.close()

    def give_up_window(self) -> None:
        """Make `save` itself copy everything from now on: other code may write to the parameters at any time."""
        self.fence()
        self.window_use = "off"

    def close(self, timeout: timedelta | None, *, ended_by: BaseException | None) -> None:
        quietly = ended_by is not None
        left = countdown(timeout := self._limited(timeout))
        try:
            if not self._is_given_up:
                self.mirrors.urge()  # now, since the wait for the last save may raise
            self.wait(timeout, for_uploads=self._is_given_up)
            if not self._is_given_up:
                self.mirrors.finish(left)  # which waits for each mirror as that deserves
            if self.results.end is not None:
                raise self.results.end  # after the wait: no rank may leave the others alone
        except NotEndedError:
            if not self.is_over:
                raise
            if self.preemption.exits:  # the grace is over, and the exit of the interpreter would wait again
                self.mirrors.abandon()
        except BaseException:
            quietly = True  # a signal must not end the process before its traceback is shown
            raise
        finally:
            self._setup.denormals.end()  # first: what follows may raise
            self._setup.area.end_preparing()
            self.preemption.end(quietly=quietly)
            if self._window is not None:  # training is over and does not wait: this is no stall
                self._window.close(patient=False)  # only after a timeout is anything left to fence
            error = ended_by or sys.exc_info()[1]
            AT_EXIT.discard(self._last_call)
            how: How = "complete" if self.is_complete else "finished" if self._is_finished else "closed"
            if self.is_over:
                how = "preempted"
            self.recorder.close(error, left, how=how)
            if error is not None and not (self.is_over and isinstance(error, Preempted)):
                HEARTBEAT.fail(error)
                how = "failed"
            HEARTBEAT.end(how, self.mirrors.lag)
        if ended_by is None:
            self._tell_left()

    def _tell_left(self) -> None:
        newest = self.saver.newest
        saved = newest is not None and newest.reaches(self._reached)
        if self._left_at == 0 or (saved and self._reached.batches_delivered >= self._left_at):
            return
        _log.warning(
            "the loop was left in batch %d, before its end, and %s. The next start trains again what came after. If "
            "training ends there, write `run = ck.loop(...)`, and call run.stop(reason) in place of the break",
            self._left_at,
            f"the newest checkpoint is {newest}" if newest is not None else "this start has saved nothing",
        )

    def _exit(self) -> None:
        # In an interactive session the last traceback need not be what ends the program.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        how: How = "preempted" if self.is_over else "exited"
        self.recorder.close(error, countdown(_EXIT_PATIENCE), how=how)

    def _limited(self, timeout: timedelta | None) -> timedelta | None:
        if self._is_given_up:
            return timedelta(0)  # the grace is over; the work under way goes on until the process ends
        if self.is_over and self.preemption.exits:
            # Everything is settled; a mirror or the events must not delay the exit beyond the grace.
            left = timedelta(seconds=self.preemption.seconds_left())
            return min(left, timeout if timeout is not None else timedelta.max)
        return timeout

    def _saving(self, state: Capturable, metrics: Metrics) -> Save:
        return lambda more: self.save(state, {**(metrics or {}), **more})

    def _collect(self, *, tolerate: bool = False) -> None:
        try:
            if self.mirrors.exists:
                self.mirrors.collect(tolerate=tolerate)
        except StaleAttemptError as error:
            if self.rank_sync.is_alone:
                raise
            self.results.end = error  # raised at the next save, in all ranks: none may leave the others alone
        self.results.collect(tolerate=tolerate)

    @contextlib.contextmanager
    def _stalling(self) -> Iterator[None]:
        with HEARTBEAT.during(Phase.SAVING):
            yield
        self.results.totals.stall_seconds = HEARTBEAT.spent().get("saving", 0.0)

    def _save(
        self, state: Capturable, metrics: Metrics, left: Countdown = _ENDLESS, *, is_final: bool = False
    ) -> SaveHandle:
        """Save in all ranks, after the save under way has ended; a collective.

        If the moment and ``metrics`` are committed already, nothing is captured or written: the writer only
        looks whether that commit is still there and this attempt still owns the run.

        Raises:
            _LateError: If the save under way has not ended in the time that is ``left``.
        """
        with self._stalling():
            begun = self._monotonic()
            if self.rank_sync.is_alone:  # what is committed needs no capture, which waits for the device and may fail
                while self.results.busy:
                    if left() <= 0:
                        raise _LateError
                    self._wait_a_while(left)
                self._collect(tolerate=is_final)
                there = self.saver.committed_at(state.progress(), _numbers(metrics))
                if there is not None:
                    return self._confirm(there, state.progress())
            moment = self._moment(state, metrics, begun, is_final=is_final)
            statuses = self._meet_idle(moment, left)
            committed = CheckpointName.parse(statuses[0].committed or "")
            if committed is None:
                return self._begin(state, moment, statuses)
            self.mirrors.agree(committed, [status.free for status in statuses], is_final=is_final)
            return self._confirm(committed, moment.capture.progress)

    def _wait_a_while(self, left: Countdown) -> None:
        """Wait for the save under way; with many ranks only a little, because all of them meet again and again."""
        seconds = left() if self.rank_sync.is_alone else min(A_WHILE.total_seconds(), left())
        with contextlib.suppress(NotEndedError):  # without a limit, the wait says in the log how it goes on
            self.results.drain(None if math.isinf(seconds) else timedelta(seconds=seconds))

    def _meet_due(
        self, state: Capturable, metrics: Metrics, progress: Progress
    ) -> tuple[_Moment, Sequence[RankStatus]] | None:
        """Meet all ranks for a save that is due; None where one is still writing, or a commit reaches the moment."""
        waits = self._setup.saving.when_busy == "wait"
        if self.rank_sync.is_alone and self.results.in_flight is not None and not waits:
            self._skip(progress, self._monotonic())  # without waiting for the device, which a capture does
            return None
        try:
            moment = self._moment(state, metrics, self._monotonic(), rewound=self.schedule.is_rewound(progress))
        except IncompleteStepError:
            if not self.rank_sync.is_alone:
                raise
            _log.info("step() was called while an error or a signal was being handled: the save waits for the next one")
            return None
        statuses = self._meet_idle(moment) if waits else self._meet(moment)
        if any(status.busy for status in statuses):
            self._skip(moment.capture.progress, moment.begun)
            return None
        newest = CheckpointName.parse(statuses[0].newest or "")
        return None if newest is not None and newest.reaches(moment.capture.progress) else (moment, statuses)

    def _skip(self, progress: Progress, now: float) -> None:
        """Skip a save that is due while the one before is still being written; in all ranks."""
        self.results.skip(timedelta(seconds=now - self.last_save_at))
        self.schedule.skipped(progress.cycles)

    def _moment(
        self, state: Capturable, metrics: Metrics, begun: float, *, rewound: bool = False, is_final: bool = False
    ) -> _Moment:
        """Capture the state, or with ``rewound`` the start of the cycle; an error ends training in all ranks."""
        # At least once: ranks that began with different weights, or train apart, would store a mixture of them.
        compares = self._setup.ranks.check_replicas or self._number == 0
        try:
            numbers = _numbers(metrics)
            capture = state.capture_cycle_start() if rewound else state.capture()
            replicas = self.rank_sync.replicas_of(capture.leaves) if compares else None
        except Exception as error:
            self.rank_sync.exchange_statuses(RankStatus(end=RankFailure.of(error)), error)
            raise
        return _Moment(capture, numbers, replicas, begun, is_final)

    def _meet_idle(self, moment: _Moment, left: Countdown = _ENDLESS) -> list[RankStatus]:
        """Meet as `_meet` does, once no rank is writing."""

        def meet(*, is_late: bool) -> list[RankStatus]:
            self._collect(tolerate=moment.is_final)
            return self._meet(moment, is_late=is_late)

        return self._when_idle(meet, left)

    def _meet(self, moment: _Moment, *, is_late: bool = False) -> list[RankStatus]:
        capture, leads = moment.capture, self.rank_sync.leads
        end, busy = self.results.end, self.results.busy
        committed, newest = self.saver.committed_at(capture.progress, moment.metrics), self.saver.newest
        model, cuts = self.rank_sync.model_of(capture.leaves)
        mine = RankStatus(
            progress=capture.progress,
            model=model,
            cuts=cuts,
            replicas=moment.replicas,
            thawed=bool(self.saver.frozen.demoted),
            busy=busy,
            late=is_late,
            lost=self.results.lost,
            end=RankFailure.of(end) if end is not None else None,
            number=self._number + 1,
            name="" if busy else str(self.saver.next_name(capture.progress)),
            committed=str(committed) if committed is not None else None,
            newest=str(newest) if newest is not None else None,
            interval=self.schedule.proposal(capture.progress.cycles) if leads else None,
            free=self.mirrors.free,
        )
        statuses = self.rank_sync.exchange_statuses(mine, end)
        self.saver.learn(CheckpointName.parse(statuses[0].newest or ""))
        self.rank_sync.refuse_incomplete_cuts(statuses, capture.leaves)
        for rank, status in enumerate(statuses):
            if status.lost is not None:
                number, why = status.lost
                self.saver.give_up(number, f"rank {rank} could not write its part: {why}")
        return statuses

    def _begin(self, state: Capturable, moment: _Moment, statuses: Sequence[RankStatus]) -> SaveHandle:
        if moment.replicas is not None or any(status.thawed for status in statuses):
            self.rank_sync.refuse_different_replicas(statuses, moment.capture.leaves)
        name = CheckpointName.parse(statuses[0].name)
        assert name is not None  # noqa: S101 - rank 0 sent the text of a name
        self.mirrors.agree(name, [status.free for status in statuses], is_final=moment.is_final)
        cost = SaveCost(queue_seconds=self._monotonic() - moment.begun, skipped_saves=self.results.skipped_saves)
        self.recorder.settle()  # the capture has just waited for the device
        self.fence()  # a thread that waited for the last save may still copy into a buffer that was returned since
        window = self._setup.area.open(moment.capture, cost, self._handling())
        handle = SaveHandle(window)
        self._window = window  # first: an update in the next call fences at once
        try:
            if window.is_open:
                state.guard(self.fence)
            request = SaveRequest(name, window, moment.metrics, self._setup.system.clock(), self._number + 1)
            self._number += 1
            self.last_save_at = self._monotonic()
            cost.stall_seconds += self.last_save_at - moment.begun  # before the writer starts: it stores the cost
            # Before it starts: Ctrl-C may arrive once it runs, and no second save may begin beside it.
            self.results.begin(self._number, handle)
            self.saver.begin(request)
            write = partial(self._write, handle, request, self._monotonic(), HEARTBEAT.spent())
            if not handle.start(write, gives_way=not moment.is_final):
                self.saver.abandon(request)
        except BaseException as error:  # Ctrl-C, too: a later fence would wait for a writer that does not exist
            handle.withdraw(error)
            raise
        if not moment.is_final:
            window.ahead.start()
        self.schedule.begun(moment.capture.progress.cycles, statuses[0].interval)
        return handle

    def _confirm(self, name: CheckpointName, progress: Progress) -> SaveHandle:
        """Let rank 0's writer look at its commit; the other ranks learn what it finds as they do after a save."""
        report = SaveReport(str(name), progress, timedelta(0), 0, SaveCost())
        handle = SaveHandle(None)

        def confirm() -> None:
            try:
                self.saver.confirm(name)
                self.mirrors.offer(name)  # it may have lost what was uploaded, or another process may train there
            except BaseException as error:  # noqa: BLE001 - every error belongs to the handle
                handle.end(error)
            else:
                handle.end(report)

        try:
            self.results.begin(self._number, handle)
            handle.start(confirm)
        except BaseException as error:  # Ctrl-C, as in `_begin`
            handle.withdraw(error)
            raise
        return handle

    def _write(self, handle: SaveHandle, request: SaveRequest, taken_at: float, spent: Spent) -> None:
        """Save, in the writer's thread, and tell the others; the seconds of the life were ``spent`` until the save."""
        progress = request.staged.progress
        try:
            try:
                saved = self.saver.save(request)
            except BaseException as error:
                self.recorder.failed(request.name, progress, error)
                raise
            finally:
                request.staged.release()
            if self.rank_sync.leads:
                HEARTBEAT.committed(progress.batches_delivered, spent.get("training", 0.0))
            self.mirrors.offer(saved.checkpoint)
            took = timedelta(seconds=self._monotonic() - taken_at)
            report = SaveReport(str(saved.checkpoint), progress, took, saved.written_bytes, request.staged.cost)
            self.recorder.saved(report, saved.removed, taken_at, spent)
        except BaseException as error:  # noqa: BLE001 - every error belongs to the handle
            handle.end(error)
        else:
            handle.end(report)

    def _handling(self) -> Handling:
        return Handling(
            copy_all=self.window_use == "off",
            by_slices=self.window_use in ("slice", "late"),
            demoted=self.saver.frozen.demoted,
            settled=self.saver.frozen.settled,
            rank=self.rank_sync.rank,
            ranks=self.rank_sync.size,
        )


def _new_saver(setup: Setup, opened: Opened, rank_sync: RankSync, patience: Patience) -> Saver | PartSaver:
    """Return what writes the saves of this rank; free what the remains of dead saves occupy, if it can."""
    room = partial(limit_at, setup.storage, CHECKPOINTS)
    if not rank_sync.leads:
        return PartSaver(setup.storage, opened.document, rank_sync.rank, room)
    mirrors, document = setup.mirrors, opened.document
    retention = Retention(
        setup.storage, document, setup.keep, is_elsewhere=mirrors.has, is_uploaded=mirrors.is_under_way
    )
    try:
        sweep(setup.storage, opened.document, has_mirror=setup.mirrors.exists)
    except StorageError as error:
        # The run is already taken over; the remains of dead saves only cost space.
        _log.warning("could not remove what earlier saves left; a later start will: %s", error)
    receipts = None
    if not rank_sync.is_alone:
        receipts = Receipts(setup.storage, rank_sync.size, patience, monotonic=setup.system.monotonic)
    return Saver(setup.storage, opened.document, opened.run_id, retention, receipts, room=room)


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in (metrics or {}).items()}


_CALLED = ("step", "save", "save_final", "end_if_asked", "agree", "wait", "close")
_CALLS = {id(getattr(Run, name).__code__): name for name in _CALLED}


def open_run(setup: Setup, state: Capturable, checkpoint: str, *, rewind: bool) -> tuple[Run | None, ResumePoint]:
    """Apply the checkpoint to ``state``, and take over the run if something is left to train."""
    HEARTBEAT.begin(setup.system.monotonic)
    show_log()
    setup.denormals.begin()  # first: threads of pipelines and of the framework that start from here on inherit it
    try:
        return _open_run(setup, state, checkpoint, rewind=rewind)
    except BaseException as error:
        setup.denormals.end()
        HEARTBEAT.fail(error)
        if setup.hooks is not None and isinstance(error, CkptKitError):
            setup.hooks.unrestored(state, str(error))
        raise


def _open_run(setup: Setup, state: Capturable, checkpoint: str, *, rewind: bool) -> tuple[Run | None, ResumePoint]:
    if setup.saving.mid_cycle == "rewind":
        state.mark_cycle_start()  # first: where it is refused, nothing was changed
    rank_sync = RankSync(state.world)
    setup.mirrors.reach(rank_sync)
    system = setup.system
    opening = Opening(checkpoint, rewind, system.host, system.clock, system.new_token, state.is_over)
    if rank_sync.leads:
        opened = lead(state.world, setup.mirrors.homes, state, partial(setup.mirrors.open, opening))
    else:
        opened = follow(state.world, setup.mirrors.homes, state)
    progress = state.progress()
    if isinstance(opened, Contents):
        _log.info("nothing is left to train, and the run may be that of a living process: it is not taken over")
        setup.denormals.end()
        HEARTBEAT.end("complete")
        return None, replace(ResumePoint.at(progress, opened.checkpoint), complete=True)
    point = ResumePoint() if opened.contents is None else ResumePoint.at(progress, opened.contents.checkpoint)
    run = Run(setup, opened, rank_sync, began_at=progress)
    run.schedule.begin_cycle(state, progress)
    setup.mirrors.begin(opened, rank_sync, run.patience)
    HEARTBEAT.restored(
        root=setup.storage.url,
        mirrors=setup.mirrors.urls,
        attempt=opened.document.attempt,
        checkpoint=point.checkpoint,
        micro_step=progress.batches_delivered,
        rank=rank_sync.rank,
        ranks=rank_sync.size,
    )
    _say_where(setup.storage.url, point, opened.document.attempt)
    return run, point


def _say_where(url: str, point: ResumePoint, attempt: int) -> None:
    if point.checkpoint is None:
        before = f": {many(attempt - 1, 'start')} before this one left no checkpoint" if attempt > 1 else ""
        advice = ". If they ended before a save was due, save more often" if before else ""
        _log.info("starting afresh at %s%s%s", url, before, advice)
        return
    steps = f"{many(point.optimizer_step, 'optimizer step')}, micro-step {point.micro_step} of its cycle"
    if point.optimizer_step == point.batches_delivered:  # with K = 1, and where K is not known
        steps = many(point.batches_delivered, "batch", "batches")
    _log.info("resuming from %s: epoch %d, batch %d, after %s", point.checkpoint, point.epoch, point.batch, steps)
