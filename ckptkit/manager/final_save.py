"""Takes the final save of a training, at its end or after a preemption request, and waits for its outcome.

Guarantees: the final save holds exactly the state of the micro-step that has just ended. Training ends only after the
save is settled: committed, failed for good, or not in time. All ranks save the same moment and end after it. In a job
of many ranks, `FinalSave.heed` meets the other ranks about once a second, in every rank at the same micro-steps.
Training thread only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from ckptkit.core.progress import Progress
from ckptkit.core.progress_bar import Countdown, countdown
from ckptkit.errors import CkptKitError, Preempted, SaveFailedError, StaleAttemptError
from ckptkit.manager.background import NotEndedError, SaveHandle, account_of
from ckptkit.manager.heartbeat.record import Phase
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.mirroring.chain import Chain
from ckptkit.manager.options import ERROR_BUDGET
from ckptkit.manager.preemption.request import PreemptionRequest
from ckptkit.manager.rank_sync import RankSync
from ckptkit.manager.results import SaveResults
from ckptkit.manager.step_timing import StepTiming, fits
from ckptkit.run.rank_protocol import RankFailure
from ckptkit.snapshot import Capturable

_log = logging.getLogger("ckptkit")

Metrics: TypeAlias = Mapping[str, float] | None
Verdict = Literal["train", "finish the cycle", "save"]

A_WHILE = timedelta(seconds=5)  # far below the timeout of any collective

_MEET_EVERY = timedelta(seconds=1)
_MOST_MICRO_STEPS = 10_000  # upper limit between two meetings, however short the micro-steps are


class SaveAll(Protocol):
    """Saves in all ranks, as `Run.save`."""

    def __call__(self, state: Capturable, metrics: Metrics, *, is_final: bool) -> SaveHandle:
        """Return the save, which has taken the state; a collective."""
        ...


class _Sign(BaseModel):
    """Holds what one rank reports at a meeting; only rank 0's ``next_in`` counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    asked: bool
    dead_child: str = ""
    left_seconds: float
    micro_step_seconds: float | None
    save_seconds: float | None
    next_in: int


class _Settled(BaseModel):
    """Holds the outcome of the final save, as rank 0 reports it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    checkpoint: str | None = None
    why: str = ""
    end: RankFailure | None = None


class _LateError(Exception):
    """Raised when the grace is over."""


class FinalSave:
    """Takes the final save of a training, at its end or after a preemption request.

    Args:
        preemption: Watches for preemption requests.
        step_timing: Measures the duration of micro-steps.
        rank_sync: The ranks of the job.
        results: Outcomes of the saves.
        mirrors: Receive what was committed.

    Attributes:
        is_held: Whether `heed` lets training go on, because the regular final save follows soon, and `leave_after` it.
        is_over: Whether the final save is settled; nothing more is to be trained.
        is_given_up: Whether the save, or its upload to the mirror, was not in time and goes on in the background.
        is_mirror_given_up: Whether the upload to the mirror failed or was not in time; `close` must not try it again.
    """

    def __init__(
        self,
        *,
        preemption: PreemptionRequest,
        step_timing: StepTiming,
        rank_sync: RankSync,
        results: SaveResults,
        mirrors: Chain,
    ) -> None:
        self._preemption, self._step_timing = preemption, step_timing
        self._rank_sync, self._results, self._mirrors = rank_sync, results, mirrors
        self._next_in = 1
        self._failure: BaseException | None = None  # of this rank's last try
        self.is_held = False
        self.is_over = False
        self.is_given_up = False
        self.is_mirror_given_up = False

    def heed(self, progress: Progress) -> Verdict:
        """Decide what to do after this micro-step; a collective whenever any rank may have a request."""
        if not self._preemption.is_watched or self.is_over or self.is_held:
            return "train"
        asked = self._preemption.poll()
        if self._rank_sync.is_alone:
            return self._verdict(progress, self._sign(asked)) if asked else "train"
        self._next_in -= 1
        if self._next_in > 0:
            return "train"
        said = [_Sign.model_validate_json(one) for one in self._rank_sync.say(self._sign(asked).model_dump_json())]
        if not any(one.asked for one in said):
            self._next_in = said[0].next_in
            return "train"
        self._next_in = 1
        if not asked:
            rank = max(range(len(said)), key=lambda one: (said[one].dead_child != "", said[one].asked))
            self._preemption.ask(f"rank {rank} was asked to end", said[rank].dead_child)
        left = min(one.left_seconds for one in said)
        return self._verdict(progress, said[0].model_copy(update={"left_seconds": left}))

    def commit(self, save: SaveAll, state: Capturable, metrics: Metrics) -> str:
        """Save ``state`` at the end of training, wait until it is committed, and return the checkpoint's name.

        Raises:
            SaveFailedError: If the state could not be committed, or not be uploaded to the mirror.
            StaleAttemptError: If another process has taken over the run.
            CkptKitError, TypeError, ValueError: As `Run.save`.
        """
        settled = self._settle(save, state, metrics, countdown(None))
        if settled.checkpoint is None:
            raise SaveFailedError(
                f"the final save failed ({ERROR_BUDGET} in a row): {settled.why.removesuffix('.')}. Repair the "
                f"storage. {self._preemption.account()}"
            ) from self._failure
        with HEARTBEAT.during(Phase.STORAGE):
            self._mirrors.finish(countdown(None))
        return settled.checkpoint

    def leave(self, save: SaveAll, state: Capturable, metrics: Metrics) -> None:
        """Save ``state`` as it is, wait until the save is settled, and end; in all ranks, after `heed` said so.

        Raises:
            Preempted: Unless training is to return.
            StaleAttemptError: If another process has taken over the run.
            CkptKitError, TypeError, ValueError: As `Run.save`.
        """
        left = countdown(None) if self._preemption.exits else self._seconds_left
        try:
            settled = self._settle(save, state, metrics, left)
            if settled.checkpoint is not None:
                self._finish_mirror(left)
        except _LateError:
            self.is_given_up = True
            settled = _Settled(why="it was not committed within the grace period, and continues in the background")
        self._end(settled, state.progress())

    def leave_after(self, checkpoint: str, progress: Progress) -> None:
        """End after the regular final save if any rank was asked to; a collective. Raises Preempted."""
        if not self._preemption.is_watched or self.is_over:
            return
        asked = self._preemption.is_asked
        if any(self._rank_sync.flags(asked)):
            if not asked:
                self._preemption.ask("another rank was asked to end")
            self._end(_Settled(checkpoint=checkpoint), progress)

    def _sign(self, asked: bool) -> _Sign:
        micro_step = self._step_timing.micro_step
        longest = max(self._results.durations, default=None)
        every = 1
        if micro_step is not None:
            every = int(min(_MEET_EVERY / max(micro_step, timedelta(microseconds=1)), _MOST_MICRO_STEPS))
        if longest is not None and self._results.in_flight is not None:
            longest *= 2  # the save under way has to end first
        return _Sign(
            asked=asked,
            dead_child=self._preemption.dead_child,
            left_seconds=self._preemption.left.total_seconds(),
            micro_step_seconds=None if micro_step is None else micro_step.total_seconds(),
            save_seconds=None if longest is None else longest.total_seconds(),
            next_in=max(1, every),
        )

    def _verdict(self, progress: Progress, sign: _Sign) -> Verdict:
        if progress.at_boundary:
            return "save"
        goes_on = fits(
            progress.accumulation_steps - progress.micro_step,
            _duration(sign.micro_step_seconds),
            _duration(sign.save_seconds),
            timedelta(seconds=sign.left_seconds),
        )
        return "finish the cycle" if goes_on else "save"

    def _settle(self, save: SaveAll, state: Capturable, metrics: Metrics, left: Countdown) -> _Settled:
        """Save ``state`` in all ranks until that is committed or has failed too often; every rank returns the same."""
        settled = _Settled()
        self._results.forgive()
        for _ in range(ERROR_BUDGET):
            self._wait(left)
            self._collect()
            try:
                handle = save(state, metrics, is_final=True)
            except SaveFailedError as refused:  # an upload's, raised once; or too many saves failed, in every rank
                settled = _Settled(why=account_of(refused))
                continue
            if not self._rank_sync.leads:
                self._preemption.recall()  # rank 0 has just reported its earlier commits
            self._wait(left)
            self._failure = error = handle.exception()
            self._collect()
            settled = self._told(error, handle.result() if error is None else None)
            if settled.checkpoint is not None:
                return settled
        return settled

    def _wait(self, left: Countdown) -> None:
        """Wait until no rank writes; no rank waits for another rank's storage inside a collective."""
        while True:
            with contextlib.suppress(NotEndedError):
                self._results.drain(timedelta(seconds=min(A_WHILE.total_seconds(), left())))
            mine = "late" if left() <= 0 and self._results.busy else "busy" if self._results.busy else "done"
            said = self._rank_sync.say(mine)
            if all(one == "done" for one in said):
                return
            if "late" in said:
                raise _LateError

    def _told(self, error: BaseException | None, checkpoint: str | None) -> _Settled:
        """Return the outcome that rank 0 reports; only rank 0 knows it. A StaleAttemptError of any rank ends all."""
        mine = _Settled(
            checkpoint=checkpoint,
            why="" if error is None else account_of(error),
            end=RankFailure.of(error) if isinstance(error, StaleAttemptError) else None,
        )
        said = [_Settled.model_validate_json(one) for one in self._rank_sync.say(mine.model_dump_json())]
        if isinstance(error, StaleAttemptError):
            raise error
        for rank, one in enumerate(said):
            if one.end is not None:
                raise one.end.error(rank)
        return said[0]

    def _end(self, settled: _Settled, progress: Progress) -> None:
        preemption = self._preemption
        preemption.settle()
        self.is_over = True
        if settled.checkpoint is not None:
            message = (
                f"{preemption.why}: saved {settled.checkpoint} at {preemption.url} (epoch {progress.epoch}, batch "
                f"{progress.batch}, micro-step {progress.micro_step} of {progress.accumulation_steps}). The same "
                "command continues from it"
            )
        else:
            message = f"{preemption.why}: the last save failed: {settled.why}. {preemption.account()}"
        _log.warning("%s", message)
        self._results.tell()
        if preemption.exits:
            raise Preempted(message, settled.checkpoint)

    def _collect(self) -> None:
        with contextlib.suppress(SaveFailedError):  # the mirror's; `_finish_mirror` reports it again
            self._mirrors.collect(tolerate=True)
        self._results.collect(tolerate=True)

    def _finish_mirror(self, left: Countdown) -> None:
        try:
            with HEARTBEAT.during(Phase.STORAGE):
                self._mirrors.finish(left)
        except StaleAttemptError:
            raise
        except (CkptKitError, NotEndedError) as error:
            self.is_given_up = isinstance(error, NotEndedError)  # `close` must not wait for an upload given up here
            self.is_mirror_given_up = True  # nor begin another one: after this nothing ends the process at the grace
            _log.warning("the checkpoint is committed, but not at the mirror yet: %s", account_of(error))

    def _seconds_left(self) -> float:
        return self._preemption.left.total_seconds()


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
