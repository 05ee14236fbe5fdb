"""Records the events of an attempt for ``ckptkit report``, beside training and at negligible cost.

Guarantees: a micro-step costs a few references. A value on a device is read some micro-steps later or while a save is
taken, when the read need not wait. A separate thread does all storage calls. The writer waits for it after a commit,
either rarely enough that an attempt has few files or once many events wait; `close` waits for it at the end. Each wait
lasts `_PATIENCE` at most. Where commits are rarer, events are stored between them, and nobody waits. An error here is
reported once, as a warning, and fails neither a save nor training; the exception is a device error that surfaces when a
value is read. Memory is bounded: if the storage accepts nothing for long, the oldest events are dropped. In a job of
many ranks only rank 0 records; its values are those of its own micro-batches.

The writer calls `saved` and `failed`; the training thread calls the other methods.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias

from ckptkit.core.progress import Progress
from ckptkit.core.progress_bar import Countdown
from ckptkit.core.save_report import SaveReport
from ckptkit.core.text import message_of
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import CkptKitError, ResumeError, StaleAttemptError
from ckptkit.format.events import (
    Began,
    Ended,
    Event,
    How,
    Interval,
    LeftOut,
    Removed,
    Saved,
    SaveFailed,
    Spent,
    plain_line,
)
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.background import Outcome
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.recording.curves import Curves, Place
from ckptkit.manager.recording.values import Values, numbers_of, settled
from ckptkit.run.event_log import EventLog

_log = logging.getLogger("ckptkit")

_SHARE = 0.05  # share of the attempt's age between two segments
_LONGEST = timedelta(minutes=5)  # between two segments
_ALONE = timedelta(seconds=30)  # the least between two segments without a commit
_PATIENCE = timedelta(seconds=10)  # limit of a wait for the storage
_SHORTEST = timedelta(seconds=0.5)
_MOST_EVENTS = 4000  # that wait for the storage; at a quarter of them they are stored
_MOST_HELD = 128  # micro-steps whose values are not read yet
_EXIT_OF_A_SIGNAL = 143


@dataclass(frozen=True)
class Taken:
    """Says when a save took the state.

    Attributes:
        at: In seconds by the monotonic clock.
        spent: What the seconds of the life had gone to by then.
    """

    at: float
    spent: Spent


class NoRecorder:
    """Records nothing."""

    def observe(self, micro_step: Values, cycle: Values) -> None:
        """Do nothing."""

    def note(self, progress: Progress, values: Values | None) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""

    def saved(self, report: SaveReport, removed: tuple[CheckpointName, ...], taken: Taken) -> None:
        """Do nothing."""

    def failed(self, checkpoint: CheckpointName, progress: Progress, error: BaseException) -> None:
        """Do nothing."""

    def interval(self, event: Interval) -> None:
        """Do nothing."""

    def flush_next(self) -> None:
        """Do nothing."""

    def close(self, error: BaseException | None, left: Countdown, *, how: How | None = None) -> None:
        """Do nothing."""


class Recorder:
    """Records the events of one attempt.

    Args:
        log: Stores the events.
        began: The first event.
        clock: Gives the time of day.
        monotonic: Gives seconds.
    """

    def __init__(
        self, log: EventLog, began: Began, *, clock: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self._log = log
        self._clock = clock
        self._monotonic = monotonic
        self._began_at = self._stored_at = monotonic()
        self._lock = threading.Lock()  # guards the events that wait
        self._storing = threading.Lock()
        self._events: deque[Event] = deque([began])
        self._left_out = 0
        self._untried = 0  # events since the storage was last asked to take any
        progress = began.progress
        self._curves = Curves(None if progress.at_boundary else progress.cycles + 1)
        self._held: deque[tuple[Progress, datetime, Values, Values]] = deque()
        self._seen: tuple[Values, Values] = ({}, {})
        self._progress = progress
        self._last_saved: str | None = None
        self._interval: Interval | None = None
        self._flush_next = self._is_final = self._closed = self._warned = False
        self._writer: Worker | None = None

    def observe(self, micro_step: Values, cycle: Values) -> None:
        """Keep values for the next `note`.

        Args:
            micro_step: Values of the last micro-step, such as its loss.
            cycle: Values of the cycle that it ended, such as the norm of its gradients.
        """
        self._seen = (micro_step, cycle)

    def note(self, progress: Progress, values: Values | None) -> None:
        """Record that a micro-step ended at ``progress`` with ``values`` and those given to `observe`.

        Values are numbers, or anything with one element that can be read with ``asnumpy``; others are left out.
        """
        (micro_step, cycle), self._seen = self._seen, ({}, {})
        self._progress = progress
        if not micro_step and not cycle and not values:
            return
        values = {**micro_step, **values} if values else micro_step
        self._held.append((progress, self._clock(), settled(values), settled(cycle) if cycle else cycle))
        if len(self._held) >= _MOST_HELD:
            self._read(_MOST_HELD // 2)
            self._store_between_commits()

    def settle(self) -> None:
        """Read all held values; called when the device has just been waited for."""
        self._read(len(self._held))

    def saved(self, report: SaveReport, removed: tuple[CheckpointName, ...], taken: Taken) -> None:
        """Record a commit and the checkpoints removed after it; stores the waiting events if it is time."""
        with self._harmless():
            if report.checkpoint == self._last_saved:
                return  # the checkpoint existed already, and nothing was written
            self._last_saved = report.checkpoint
            at = self._clock().isoformat()
            cost = report.cost
            done = Saved(
                at=at,
                checkpoint=report.checkpoint,
                progress=report.progress,
                took_seconds=max(0.0, report.took.total_seconds()),
                stall_seconds=max(0.0, cost.stall_seconds),
                queue_seconds=max(0.0, cost.queue_seconds),
                size_bytes=report.size_bytes,
                skipped_saves=cost.skipped_saves,
                uptime_seconds=self._uptime(),
                taken_seconds=max(0.0, taken.at),
                spent=taken.spent,
            )
            self._add(done, *(Removed(at=at, checkpoint=str(name), after=report.checkpoint) for name in removed))
            if self._is_time() and not self._is_storing:
                self._flush_next = False
                self._store_within(_PATIENCE.total_seconds())

    def failed(self, checkpoint: CheckpointName, progress: Progress, error: BaseException) -> None:
        """Record that a save failed."""
        with self._harmless():
            at = self._clock().isoformat()
            self._add(
                SaveFailed(
                    at=at,
                    checkpoint=str(checkpoint),
                    progress=progress,
                    error=plain_line(type(error).__name__, 128),
                    message=plain_line(message_of(error)),
                )
            )

    def interval(self, event: Interval) -> None:
        """Record what `SaveEvery.auto` chose; each stored file says it anew, because a start reads the last ones."""
        self._interval = event
        self._add(event)

    def flush_next(self) -> None:
        """Store everything at the next commit, which is the last one."""
        self._flush_next = self._is_final = True

    def close(self, error: BaseException | None, left: Countdown, *, how: How | None = None) -> None:
        """Record how the attempt ends, and store the waiting events.

        Args:
            error: The error that ended it.
            left: Gives the time that the caller can wait.
            how: How it ended if there is no error; None if only the saves tell.
        """
        if self._closed:
            return
        self._closed = True
        if not isinstance(error, Exception) or isinstance(error, CkptKitError):
            self.settle()
        # Otherwise the device may have failed, and reading from it may never return.
        with self._harmless():
            self._add(*self._curves.take(all_of_it=True))
            ended = Ended(
                at=self._clock().isoformat(),
                how=how if how is not None and error is None else self._how(error),
                progress=self._progress,
                error=plain_line(type(error).__name__, 128) if error is not None else None,
                message=plain_line(message_of(error)) if error is not None else "",
                uptime_seconds=self._uptime(),
                spent=HEARTBEAT.spent(),
            )
            self._add(ended)
            self._store_within(min(_PATIENCE.total_seconds(), max(_SHORTEST.total_seconds(), left())))

    def _uptime(self) -> float:
        return max(0.0, self._monotonic())

    def _how(self, error: BaseException | None) -> How:
        if error is None:
            return "finished" if self._is_final else "closed"
        if isinstance(error, StaleAttemptError):
            return "overtaken"
        if isinstance(error, SystemExit) and error.code == _EXIT_OF_A_SIGNAL:
            return "preempted"
        return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"

    def _read(self, count: int) -> None:
        for _ in range(count):
            progress, at, micro_step, cycle = self._held.popleft()
            # A device error must reach the caller: it may be a kernel's failure, which is raised only once.
            numbers = numbers_of(micro_step), numbers_of(cycle)
            ahead = 0 if progress.at_boundary else 1
            place = Place(progress.cycles + ahead, progress.updates + ahead, progress.at_boundary, at)
            self._curves.add(place, *numbers)
        with self._harmless():
            self._add(*self._curves.take())

    def _add(self, *events: Event) -> None:
        with self._lock:
            self._events.extend(events)
            self._untried += len(events)
            while len(self._events) > _MOST_EVENTS:
                del self._events[1]  # keeps the first event, which tells how the attempt began or is next to be stored
                self._left_out += 1

    def _is_time(self) -> bool:
        return self._flush_next or self._has_paused(timedelta()) or self._untried >= _MOST_EVENTS // 4

    def _has_paused(self, least: timedelta) -> bool:
        """Return whether the last segment is old enough for the age of the attempt, and older than ``least``."""
        now = self._monotonic()
        pause = min(_SHARE * (now - self._began_at), _LONGEST.total_seconds())
        return now - self._stored_at >= max(pause, least.total_seconds())

    @property
    def _is_storing(self) -> bool:
        """Whether the storage has still not accepted earlier events."""
        return self._writer is not None and _runs(self._writer)

    def _store_between_commits(self) -> None:
        """Begin to store the waiting events if no commit has done so for long; nobody waits for it."""
        if not self._untried or self._is_storing or not self._has_paused(_ALONE):
            return
        try:  # nothing else is caught: the error of a signal handler may come here, and is training's
            self._writer = Worker(self._store_beside_training, "ckptkit-events", gives_way=True)
            self._writer.start()
        except (NoThreadError, MemoryError) as error:
            self._warn(f"{type(error).__name__}: {error}")

    def _store_beside_training(self) -> None:
        with self._harmless():
            self._store()

    def _store_within(self, seconds: float) -> None:
        """Store the waiting events, and wait at most ``seconds`` for that.

        Runs in its own thread: a storage may retry for minutes, while the next save waits for the writer thread and a
        process that exits may have seconds left. The thread is a daemon for the same reason.
        """
        outcome: Outcome[None] = Outcome()
        writer = self._writer = Worker(partial(self._store_for, outcome), "ckptkit-events")
        writer.start()
        writer.wait(seconds)
        if _runs(writer):
            self._warn(f"the storage accepted none for {seconds:.1f} s")
        else:
            outcome.result()  # the thread has ended

    def _store_for(self, outcome: Outcome[None]) -> None:
        try:
            self._store()
        except BaseException as error:  # noqa: BLE001 - every error belongs to the waiting thread
            outcome.fail(error)
        else:
            outcome.succeed(None)

    def _store(self) -> None:
        with self._storing:
            self._stored_at, self._untried = self._monotonic(), 0  # first: else every commit would retry a failure
            self._log.send()
            with self._lock:
                if self._left_out:
                    self._events.append(LeftOut(at=self._clock().isoformat(), events=self._left_out))
                    self._left_out = 0
                if self._interval is not None and self._interval not in self._events:
                    self._events.append(self._interval)
                events = list(self._events)
                self._events.clear()
            self._put(events)

    def _put(self, events: list[Event]) -> None:
        try:
            while events:
                events = events[self._log.take(events) :]
                self._log.send()
        finally:
            with self._lock:
                self._events.extendleft(reversed(events))

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        try:
            yield
        except ResumeError:  # of a signal handler that called the manager: its caller must hear of it
            raise
        except Exception as error:  # noqa: BLE001 - no error here may fail a save or training
            self._warn(f"{type(error).__name__}: {error}")
            _log.debug("where that failed:", exc_info=error)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "could not store events for `ckptkit report`; later saves will try again: %s. Checkpoints are not "
                "affected. Saving(events=False) turns events off",
                why,
            )


AnyRecorder: TypeAlias = Recorder | NoRecorder


def _runs(writer: Worker) -> bool:
    return not (writer.has_ended or writer.is_lost)
