"""Decides when a save is due and starts it: takes the state, opens its window and starts the writer.

Guarantees: a call that returns a running save has taken the state of that moment. One save at a time is under way. In a
job of many ranks, either all ranks take the same moment under the same name or none takes any. Training thread only;
the writer has its own thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from ckptkit.checkpoint.write import SaveRequest
from ckptkit.core.contents import Capture
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost, SaveReport
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.auto_interval import AutoInterval
from ckptkit.manager.background import NotEndedError, SaveHandle
from ckptkit.manager.copy_memory import CopyMemory
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.mirroring.chain import Chain
from ckptkit.manager.options import MidCycle, WindowUse
from ckptkit.manager.preemption.request import PreemptionRequest
from ckptkit.manager.rank_sync import RankStatus, RankSync
from ckptkit.manager.recording.recorder import AnyRecorder, Taken
from ckptkit.manager.results import SaveResults
from ckptkit.manager.step_timing import StepTiming
from ckptkit.run.part_saver import PartSaver
from ckptkit.run.rank_protocol import Failure
from ckptkit.run.saver import Saver
from ckptkit.snapshot import Capturable, Handling, StagingArea, Window

AnySaver: TypeAlias = Saver | PartSaver
Metrics: TypeAlias = Mapping[str, float] | None

A_WHILE = timedelta(seconds=5)  # far below the timeout of any collective


@dataclass(frozen=True)
class Services:
    """Holds the parts that the scheduler, the final save and the run of one attempt share.

    Attributes:
        saver: Writes the saves and knows what is committed.
        rank_sync: The ranks of the job.
        results: Outcomes of the saves.
        mirrors: Receive what was committed.
        recorder: Records the saves for ``ckptkit report``.
        preemption: Watches for preemption requests.
        step_timing: Measures the duration of micro-steps.
        auto_interval: Chooses the interval of `SaveEvery.auto`.
        copy_memory: What saves copy into.
    """

    saver: AnySaver
    rank_sync: RankSync
    results: SaveResults
    mirrors: Chain
    recorder: AnyRecorder
    preemption: PreemptionRequest
    step_timing: StepTiming
    auto_interval: AutoInterval
    copy_memory: CopyMemory


class DueSaves:
    """Applies a manager's schedule and its ``mid_cycle`` to the progress of one attempt.

    Args:
        rank_sync: The ranks of the job, with the schedule.
        mid_cycle: What happens to a save that is due between two boundaries, as for `ckptkit.CheckpointManager`.
    """

    def __init__(self, rank_sync: RankSync, mid_cycle: MidCycle) -> None:
        self._rank_sync = rank_sync
        self._mid_cycle = mid_cycle
        self._waits_for_boundary = False
        self._cycle_start: Progress | None = None

    def is_due(self, progress: Progress, since: timedelta) -> bool:
        """Return whether to save now, ``since`` after the last save began; may be a collective."""
        due = self._rank_sync.is_due(progress, since)
        if self._mid_cycle == "align":
            due = due or self._waits_for_boundary
            self._waits_for_boundary = due and not progress.at_boundary
            return due and progress.at_boundary
        return due

    def begin_cycle(self, state: Capturable, progress: Progress) -> None:
        """At a boundary, let ``state`` keep what ``"rewind"`` stores until the next one."""
        if self._mid_cycle == "rewind" and progress.at_boundary:
            self._cycle_start = state.mark_cycle_start()

    def stored_at(self, progress: Progress) -> Progress:
        """Return the progress that a save at ``progress`` stores."""
        start = self._cycle_start
        return start if start is not None and start.cycles == progress.cycles else progress


class Scheduler:
    """Starts the saves of one attempt.

    Args:
        services: The parts that it shares with the rest of the attempt.
        area: Stages the captures.
        window_use: How to take the leaves that only an update changes, as for `ckptkit.CheckpointManager`; with
            ``"late"``, only when the fence or a wait requires it, so that whatever changed them before is seen.
        clock: Gives the time of day.
        monotonic: Gives seconds.
        check_replicas: Whether every save, and not just the first, compares what must be the same in all ranks.

    Attributes:
        window_use: As the argument; may change between two saves.
        last_at: Start of the last save, in seconds.
    """

    def __init__(
        self,
        services: Services,
        area: StagingArea,
        *,
        window_use: WindowUse | Literal["late"],
        check_replicas: bool,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._saver = services.saver
        self._rank_sync = services.rank_sync
        self._area = area
        self._results = services.results
        self._mirrors = services.mirrors
        self._recorder = services.recorder
        self._auto_interval = services.auto_interval
        self._check_replicas = check_replicas
        self._clock = clock
        self._monotonic = monotonic
        self._window: Window | None = None
        self._number = 0
        self.window_use = window_use
        self.last_at = monotonic()

    def advance(self, micro_steps_left: int) -> None:
        """Give the writer the slices that it may wait for; the next update is ``micro_steps_left`` micro-steps away."""
        if self._window is not None and self.window_use != "late":
            self._window.advance(micro_steps_left)

    def fence(self, *, patient: bool = True) -> None:
        """Make sure that nothing reads live memory any more."""
        if self._window is not None:
            with HEARTBEAT.during(Phase.SAVING), self._auto_interval.stalling():
                self._window.close(patient=patient)

    def save(self, state: Capturable, metrics: Metrics, *, is_final: bool = False) -> SaveHandle:
        """Save in all ranks, after the save under way has ended; a collective.

        If the moment and ``metrics`` are committed already, nothing is captured or written: the writer only looks
        whether that commit is still there and this attempt still owns the run.

        Args:
            state: State of this rank.
            metrics: Rank 0's are stored.
            is_final: Whether nothing follows, so that it is uploaded to all mirrors.

        Raises:
            CkptKitError: As in `RankSync.words`.
            SaveFailedError, StaleAttemptError: As in `SaveResults.collect`.
            TypeError, ValueError: If a metric is not a number, or the state cannot be stored.
        """
        with HEARTBEAT.during(Phase.SAVING), self._auto_interval.stalling():
            return self._save(state, _numbers(metrics), is_final=is_final)

    def _save(self, state: Capturable, numbers: dict[str, float], *, is_final: bool) -> SaveHandle:
        begun = self._monotonic()
        if self._rank_sync.is_alone:  # what is committed needs no capture, which waits for the device and may fail
            self._results.drain()
            self._collect()
            there = self._saver.committed_at(state.progress(), numbers)
            if there is not None:
                return self._confirm(there, state.progress())
        moment = replace(self._moment(state, numbers, begun, rewound=False), is_final=is_final)
        said = self._meet_idle(moment)
        committed = CheckpointName.parse(said[0].committed or "")
        if committed is None:
            return self._begin(state, moment, said)
        self._mirrors.agree(committed, [word.free for word in said], is_final=is_final)
        return self._confirm(committed, moment.capture.progress)

    def save_due(self, state: Capturable, metrics: Metrics, *, rewound: bool, waits: bool) -> SaveHandle | None:
        """Save in all ranks, or in none: where one is still writing, or a commit reaches the moment; a collective.

        Args:
            state: State of this rank.
            metrics: Rank 0's are stored.
            rewound: Take the start of the running cycle.
            waits: Wait for the save under way, in all ranks, instead of skipping this one.

        Raises:
            CkptKitError, TypeError, ValueError: As in `save`.
        """
        with HEARTBEAT.during(Phase.SAVING), self._auto_interval.stalling():
            return self._save_due(state, _numbers(metrics), rewound=rewound, waits=waits)

    def _save_due(
        self, state: Capturable, numbers: dict[str, float], *, rewound: bool, waits: bool
    ) -> SaveHandle | None:
        moment = self._moment(state, numbers, self._monotonic(), rewound=rewound)
        said = self._meet_idle(moment) if waits else self._meet(moment)
        if any(word.busy for word in said):
            self.skip(moment.capture.progress, timedelta(seconds=moment.begun - self.last_at))
            return None
        newest = CheckpointName.parse(said[0].newest or "")
        if newest is not None and newest.reaches(moment.capture.progress):
            return None
        return self._begin(state, moment, said)

    def skip(self, progress: Progress, since: timedelta) -> None:
        """Skip a save that is due at ``progress`` while the one before is still being written; in all ranks."""
        self._results.skip(since)
        if self._auto_interval.is_used:
            self._rank_sync.due_from(progress.cycles + self._auto_interval.later())

    def _moment(self, state: Capturable, metrics: dict[str, float], begun: float, *, rewound: bool) -> _Moment:
        self._collect()
        capture = self._captured(state, rewound=rewound)
        # At least once: ranks that began with different weights, or train apart, would store a mixture of them.
        compares = self._check_replicas or self._number == 0
        return _Moment(capture, metrics, self._rank_sync.replicas_of(capture.leaves) if compares else None, begun)

    def _captured(self, state: Capturable, *, rewound: bool) -> Capture:
        """Capture the state; an error in this rank ends training in all ranks."""
        try:
            return state.capture_cycle_start() if rewound else state.capture()
        except Exception as error:
            self._rank_sync.words(RankStatus(end=Failure.of(error)), error)
            raise

    def _meet_idle(self, moment: _Moment) -> list[RankStatus]:
        """Meet as `_meet` does, once no rank is writing.

        No rank waits for another rank's storage inside a gather, because frameworks abort it (on CPU after 30 s). Every
        rank waits a little for its own writer, and all meet again.
        """
        while True:
            with contextlib.suppress(NotEndedError):
                self._results.drain(A_WHILE)
            self._collect()
            said = self._meet(moment)
            if not any(word.busy for word in said):
                return said

    def _meet(self, moment: _Moment) -> list[RankStatus]:
        """Tell the other ranks the status of this one and return theirs."""
        capture = moment.capture
        end = self._results.end
        committed = self._saver.committed_at(capture.progress, moment.metrics) if self._rank_sync.leads else None
        newest = self._saver.newest if self._rank_sync.leads else None
        busy = self._results.busy
        mine = RankStatus(
            progress=capture.progress,
            model=self._rank_sync.model_of(capture.leaves),
            cuts=self._rank_sync.cuts_of(capture.leaves),
            replicas=moment.replicas,
            thawed=bool(self._saver.frozen.demoted),
            busy=busy,
            lost=self._results.lost,
            end=Failure.of(end) if end is not None else None,
            number=self._number + 1,
            name="" if busy else str(self._saver.next_name(capture.progress)),
            committed=str(committed) if committed is not None else None,
            newest=str(newest) if newest is not None else None,
            interval=self._auto_interval.proposal(capture.progress.cycles) if self._rank_sync.leads else None,
            free=self._mirrors.free,
        )
        said = self._rank_sync.words(mine, end)
        self._saver.learn(CheckpointName.parse(said[0].newest or ""))
        self._rank_sync.refuse_incomplete_cuts(said, capture.leaves)
        for rank, word in enumerate(said):
            if word.lost is not None:
                number, why = word.lost
                self._saver.give_up(number, f"rank {rank} could not write its part: {why}")
        return said

    def _begin(self, state: Capturable, moment: _Moment, said: Sequence[RankStatus]) -> SaveHandle:
        if moment.replicas is not None or any(word.thawed for word in said):
            self._rank_sync.refuse_different_replicas(said, moment.capture.leaves)
        name = CheckpointName.parse(said[0].name)
        assert name is not None  # noqa: S101 - rank 0 sent the text of a name
        self._mirrors.agree(name, [word.free for word in said], is_final=moment.is_final)
        cost = SaveCost(queue_seconds=self._monotonic() - moment.begun, skipped_saves=self._results.skipped_saves)
        self._recorder.settle()  # the capture has just waited for the device
        self.fence()  # a thread that waited for the last save may still be copying, into a buffer given back since
        window = self._area.open(moment.capture, cost, self.handling())
        handle = SaveHandle(window)
        self._window = window  # first: an update in the next call fences at once
        try:
            if window.is_open:
                state.guard(self.fence)
            request = SaveRequest(name, window, moment.metrics, self._clock(), self._number + 1)
            self._number += 1
            self.last_at = self._monotonic()
            cost.stall_seconds += self.last_at - moment.begun  # before the writer starts, because it stores the cost
            # Before it starts: Ctrl-C may arrive once it runs, and no second save may begin beside it.
            self._results.begin(self._number, handle)
            self._saver.begin(request)
            if not handle.start(self._writing(request), gives_way=not moment.is_final):
                self._saver.abandon(request)
        except BaseException as error:  # Ctrl-C, too: a later fence would wait for a writer that does not exist
            handle.withdraw(error)
            raise
        if not moment.is_final:
            window.ahead.start()
        self._agree_on_interval(moment.capture.progress, said[0].interval)
        return handle

    def _agree_on_interval(self, progress: Progress, interval: int | None) -> None:
        if self._auto_interval.is_used and interval is not None:
            self._auto_interval.begin(progress.cycles, interval)
            self._rank_sync.due_from(progress.cycles + interval)

    def _confirm(self, name: CheckpointName, progress: Progress) -> SaveHandle:
        """Let rank 0's writer look at its commit; the other ranks learn what it found as they do after a save."""
        report = SaveReport(str(name), progress, timedelta(0), 0, SaveCost())
        handle = SaveHandle(None)
        if not self._rank_sync.leads:
            self._mirrors.offer(name)
            handle.end(report)
            return handle

        def confirm() -> SaveReport:
            self._saver.confirm(name)
            self._mirrors.offer(name)  # it may have lost what was uploaded, or another process may train there
            return report

        try:
            self._results.begin(self._number, handle)
            handle.start(confirm)
        except BaseException as error:  # Ctrl-C, as in `_begin`
            handle.withdraw(error)
            raise
        return handle

    def _writing(self, request: SaveRequest) -> Callable[[], SaveReport]:
        begun = self._monotonic()
        staged = request.staged
        spent = HEARTBEAT.spent()
        micro_step, trained = staged.progress.batches_delivered, spent.get("training", 0.0)
        taken = Taken(begun, spent)

        def save() -> SaveReport:
            try:
                saved = self._saver.save(request)
            except Exception as error:
                self._recorder.failed(request.name, staged.progress, error)
                raise
            finally:
                staged.release()
            if self._rank_sync.leads:
                HEARTBEAT.committed(micro_step, trained)
            self._mirrors.offer(saved.checkpoint)
            took = timedelta(seconds=self._monotonic() - begun)
            report = SaveReport(str(saved.checkpoint), staged.progress, took, saved.written_bytes, staged.cost)
            self._recorder.saved(report, saved.removed, taken)
            return report

        return save

    def handling(self) -> Handling:
        """Return how the next save treats the leaves."""
        return Handling(
            copy_all=self.window_use == "off",
            by_slices=self.window_use in ("slice", "late"),
            demoted=self._saver.frozen.demoted,
            settled=self._saver.frozen.settled,
            rank=self._rank_sync.rank,
            ranks=self._rank_sync.size,
        )

    def _collect(self) -> None:
        self._mirrors.collect()
        self._results.collect()


@dataclass(frozen=True)
class _Moment:
    """Holds what one rank brings to a save."""

    capture: Capture
    metrics: Mapping[str, float]
    replicas: str | None  # digest of what must be the same in all ranks, if that is compared
    begun: float  # seconds
    is_final: bool = False  # nothing follows


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in (metrics or {}).items()}
