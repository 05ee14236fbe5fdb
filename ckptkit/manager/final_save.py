"""Takes the final save of a training, at its end or after a preemption request, and waits for its outcome.

The final save holds exactly the state of the micro-step that has just ended. Training ends only after the save is
settled: committed, failed for good, or not in time. All ranks save the same moment and end after it. Training thread
only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias

from ckptkit.core.progress import Progress
from ckptkit.core.waiting import Countdown, countdown
from ckptkit.errors import Preempted, SaveFailedError, StaleAttemptError
from ckptkit.format.documents import StrictModel
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.mirrors import Chain
from ckptkit.manager.options import ERROR_BUDGET
from ckptkit.manager.preemption import PreemptionRequest
from ckptkit.manager.schedule import StepTiming, fits
from ckptkit.manager.writer import NotEndedError, SaveHandle, SaveResults, account_of
from ckptkit.run.joint_start import RankFailure
from ckptkit.snapshot import Capturable

_log = logging.getLogger("ckptkit")

Metrics: TypeAlias = Mapping[str, float] | None
SaveAll: TypeAlias = Callable[..., SaveHandle]  # `Run._save`, given at each call so that no cycle of references is made
Verdict = Literal["train", "finish the cycle", "save"]

A_WHILE = timedelta(seconds=5)  # far below the timeout of any collective

_MEET_EVERY = timedelta(seconds=1)
_MOST_MICRO_STEPS = 10_000  # upper limit between two meetings, however short the micro-steps are


class _Sign(StrictModel):
    """Holds what one rank reports at a meeting; only rank 0's ``next_in`` counts."""

    asked: bool
    dead_child: str = ""
    left: timedelta  # of the grace
    micro_step: timedelta | None  # the longest of the last ones
    save: timedelta | None  # how long everything that has to be written takes
    next_in: int


class _Settled(StrictModel):
    """Holds what a rank says of the final save; only rank 0 knows the outcome."""

    is_busy: bool = False  # this rank is still writing
    is_late: bool = False  # and its grace is over
    checkpoint: str | None = None
    why: str = ""
    end: RankFailure | None = None


class _LateError(Exception):
    """Raised when the grace is over."""


@dataclass(eq=False)
class FinalSave:
    preemption: PreemptionRequest
    step_timing: StepTiming
    rank_sync: RankSync
    results: SaveResults
    mirrors: Chain
    is_held: bool = False  # training goes on, because the regular final save follows soon
    is_over: bool = False  # the final save is settled; nothing more is to be trained
    is_given_up: bool = False  # the save, or its upload, was not in time and goes on in the background
    is_mirror_given_up: bool = False  # the upload failed or was not in time; `close` must not try it again
    _next_in: int = 1
    _failure: BaseException | None = None  # of this rank's last try

    def heed(self, save: SaveAll, state: Capturable, metrics: Metrics, progress: Progress) -> bool:
        """Save and end training if that was requested and it is time; return whether the end was requested.

        In a job of many ranks a collective, about once a second.
        """
        verdict = self.verdict(progress)
        if verdict == "save":
            self._leave(save, state, metrics)
        return verdict != "train"

    def verdict(self, progress: Progress) -> Verdict:
        if not self.preemption.is_watched or self.is_over or self.is_held:
            return "train"
        asked = self.preemption.poll()
        self._next_in -= 1
        if self._next_in > 0 or (self.rank_sync.is_alone and not asked):
            return "train"
        said = self.rank_sync.exchange(self._sign(asked))
        if not any(sign.asked for sign in said):
            self._next_in = said[0].next_in
            return "train"
        self._next_in = 1
        if not asked:
            rank = max(range(len(said)), key=lambda rank: (said[rank].dead_child != "", said[rank].asked))
            self.preemption.ask(f"rank {rank} was asked to end", said[rank].dead_child)
        if progress.at_boundary:
            return "save"
        left = min(sign.left for sign in said)
        steps_left = progress.accumulation_steps - progress.micro_step
        return "finish the cycle" if fits(steps_left, said[0].micro_step, said[0].save, left) else "save"

    def commit(self, save: SaveAll, state: Capturable, metrics: Metrics) -> str:
        """Save ``state`` at the end of training, wait until it is committed, and return the checkpoint's name."""
        settled = self._settle(save, state, metrics, countdown(None))
        if settled.checkpoint is None:
            raise SaveFailedError(
                f"the final save failed ({ERROR_BUDGET} in a row): {settled.why.removesuffix('.')}. Repair the "
                f"storage. {self.preemption.account()}"
            ) from self._failure
        self.mirrors.finish(countdown(None))
        return settled.checkpoint

    def _leave(self, save: SaveAll, state: Capturable, metrics: Metrics) -> None:
        # With "exit", a thread ends the process at the end of the grace.
        left = countdown(None) if self.preemption.exits else self.preemption.seconds_left
        try:
            settled = self._settle(save, state, metrics, left)
            if settled.checkpoint is not None:
                self._finish_mirror(left)
        except _LateError:
            self.is_given_up = True
            settled = _Settled(why="it was not committed within the grace period, and continues in the background")
        self._end(settled, state.progress())

    def leave_after(self, checkpoint: str, progress: Progress) -> None:
        """End after the regular final save if any rank was asked to; a collective."""
        if not self.preemption.is_watched or self.is_over:
            return
        asked = self.preemption.is_asked
        if any(self.rank_sync.flags(asked)):
            if not asked:
                self.preemption.ask("another rank was asked to end")
            self._end(_Settled(checkpoint=checkpoint), progress)

    def _sign(self, asked: bool) -> _Sign:
        micro_step = self.step_timing.micro_step
        longest = max(self.results.durations, default=None)
        every = 1
        if micro_step is not None:
            every = int(min(_MEET_EVERY / max(micro_step, timedelta(microseconds=1)), _MOST_MICRO_STEPS))
        if longest is not None and self.results.in_flight is not None:
            longest *= 2  # the save under way has to end first
        return _Sign(
            asked=asked,
            dead_child=self.preemption.dead_child,
            left=timedelta(seconds=self.preemption.seconds_left()),
            micro_step=micro_step,
            save=longest,
            next_in=max(1, every),
        )

    def _settle(self, save: SaveAll, state: Capturable, metrics: Metrics, left: Countdown) -> _Settled:
        """Save ``state`` in all ranks until that is committed or has failed too often; every rank returns the same."""
        settled = _Settled()
        self.results.forgive()
        for _ in range(ERROR_BUDGET):
            self._meet(left)
            self._collect()
            try:
                handle = save(state, metrics, is_final=True)
            except SaveFailedError as refused:  # an upload's, raised once; or too many saves failed, in every rank
                settled = _Settled(why=account_of(refused))
                continue
            if not self.rank_sync.leads:
                self.preemption.recall()  # rank 0 has just reported its earlier commits
            said = self._meet(left, handle)
            self._failure = handle.exception()
            self._collect()
            if isinstance(self._failure, StaleAttemptError):
                raise self._failure
            for rank, word in enumerate(said):
                if word.end is not None:
                    raise word.end.error(rank)
            settled = said[0]
            if settled.checkpoint is not None:
                return settled
        return settled

    def _meet(self, left: Countdown, handle: SaveHandle | None = None) -> list[_Settled]:
        """Wait until no rank writes, and return what each says of the save, by rank.

        No rank waits for another rank's storage inside a collective.
        """
        while True:
            with contextlib.suppress(NotEndedError):
                self.results.drain(timedelta(seconds=min(A_WHILE.total_seconds(), left())))
            is_busy = self.results.busy
            mine = _Settled(is_busy=is_busy, is_late=is_busy and left() <= 0)
            if handle is not None and not is_busy:
                mine = _settled_by(handle)
            said = self.rank_sync.exchange(mine)
            if any(word.is_late for word in said):
                raise _LateError
            if not any(word.is_busy for word in said):
                return said

    def _end(self, settled: _Settled, progress: Progress) -> None:
        preemption = self.preemption
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
        self.results.tell()
        if preemption.exits:
            raise Preempted(message, settled.checkpoint)

    def _collect(self) -> None:
        self.mirrors.collect(tolerate=True)  # `_finish_mirror` reports a failure
        self.results.collect(tolerate=True)

    def _finish_mirror(self, left: Countdown) -> None:
        try:
            self.mirrors.finish(left)
        except (SaveFailedError, NotEndedError) as error:
            self.is_given_up = isinstance(error, NotEndedError)  # `close` must not wait for an upload given up here
            self.is_mirror_given_up = True  # nor begin another one: after this nothing ends the process at the grace
            _log.warning("the checkpoint is committed, but not at the mirror yet: %s", account_of(error))


def _settled_by(handle: SaveHandle) -> _Settled:
    error = handle.exception()
    if error is None:
        return _Settled(checkpoint=handle.result())
    end = RankFailure.of(error) if isinstance(error, StaleAttemptError) else None
    return _Settled(why=account_of(error), end=end)
