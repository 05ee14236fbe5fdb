"""Records the events of an attempt for ``ckptkit report``, beside training and at negligible cost.

A micro-step costs a few references: a value on a device is read some micro-steps later or while a save is taken, when
the read need not wait. A separate thread does all storage calls; the writer waits for it at most `_PATIENCE` after a
commit, rarely, and so does `Recorder.close`. An error here is one warning, and fails neither a save nor training,
except a device error that surfaces when a value is read. Memory is bounded. The writer calls `Recorder.saved` and
`Recorder.failed`; the training thread calls the other methods.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveReport
from ckptkit.core.text import message_of
from ckptkit.core.waiting import Countdown
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import CkptKitError, ResumeError, StaleAttemptError
from ckptkit.format.events import (
    MAX_CURVES,
    Began,
    Ended,
    Event,
    How,
    Interval,
    LeftOut,
    Point,
    Removed,
    Saved,
    SaveFailed,
    Spent,
    Spread,
    plain_line,
)
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.heartbeat import HEARTBEAT
from ckptkit.manager.preemption import EXIT_CODE
from ckptkit.run.event_log import EventLog

_log = logging.getLogger("ckptkit")

_SHARE = 0.05  # share of the attempt's age between two segments
_LONGEST = timedelta(minutes=5)  # between two segments
_ALONE = timedelta(seconds=30)  # the least between two segments without a commit
_PATIENCE = timedelta(seconds=10)  # limit of a wait for the storage
_SHORTEST = timedelta(seconds=0.5)
_MOST_EVENTS = 4000  # that wait for the storage; at a quarter of them they are stored
_MOST_HELD = 128  # micro-steps whose values are not read yet
FINE = 1000  # cycles with a point of their own: a large screen is one or two times as many pixels wide

Values = Mapping[str, Any]


class Recorder:
    """Records the events of one attempt; without ``log``, nothing."""

    def __init__(
        self, log: EventLog | None, began: Began, *, clock: Callable[[], datetime], monotonic: Callable[[], float]
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
        self.seen: tuple[Values, Values] = ({}, {})  # of the last micro-step, and of the cycle that it ended
        self._progress = progress
        self._last_saved: str | None = None
        self._interval: Interval | None = None
        self._closed = self._warned = False
        self.flush_next = False  # store everything at the next commit, which is the last one
        self._storer: Worker | None = None
        self._storers_error: BaseException | None = None

    def note(self, progress: Progress, values: Values | None) -> None:
        """Record that a micro-step ended at ``progress`` with ``values`` and those `seen`.

        Values are numbers, or anything with one element that can be read with ``asnumpy``; others are left out.
        """
        (micro_step, cycle), self.seen = self.seen, ({}, {})
        self._progress = progress
        if self._log is None or not (micro_step or cycle or values):
            return
        values = {**micro_step, **values} if values else micro_step
        self._held.append((progress, self._clock(), settled(values), settled(cycle) if cycle else cycle))
        if len(self._held) >= _MOST_HELD:
            self._read(_MOST_HELD // 2)
            if self._untried and not self._is_storing and self._has_paused(_ALONE):  # long without a commit
                self._begin_storing(gives_way=True)

    def settle(self) -> None:
        """Read all held values; called when the device has just been waited for."""
        self._read(len(self._held))

    def saved(self, report: SaveReport, removed: tuple[CheckpointName, ...], taken_at: float, spent: Spent) -> None:
        """Record a commit and the checkpoints removed after it; store the waiting events if it is time."""
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
                uptime_seconds=max(0.0, self._monotonic()),
                taken_seconds=max(0.0, taken_at),
                spent=spent,
            )
            self._add(done, *(Removed(at=at, checkpoint=str(name), after=report.checkpoint) for name in removed))
            is_time = self.flush_next or self._has_paused(timedelta()) or self._untried >= _MOST_EVENTS // 4
            if is_time and not self._is_storing:
                self.flush_next = False
                self._store_within(_PATIENCE.total_seconds())

    def failed(self, checkpoint: CheckpointName, progress: Progress, error: BaseException) -> None:
        with self._harmless():
            at = self._clock().isoformat()
            self._add(SaveFailed(at=at, checkpoint=str(checkpoint), progress=progress, **_described(error)))

    def interval(self, event: Interval) -> None:
        """Record what `SaveEvery.auto` chose; each stored file says it anew, because a start reads the last ones."""
        self._interval = event
        self._add(event)

    def close(self, error: BaseException | None, left: Countdown, *, how: How) -> None:
        """Record how the attempt ends, and store the waiting events, as long as ``left`` says at most."""
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
                how=how if error is None else _how_of(error),
                progress=self._progress,
                uptime_seconds=max(0.0, self._monotonic()),
                spent=HEARTBEAT.spent(),
                **_described(error),
            )
            self._add(ended)
            self._store_within(min(_PATIENCE.total_seconds(), max(_SHORTEST.total_seconds(), left())))

    def _read(self, count: int) -> None:
        for _ in range(count):
            progress, at, micro_step, cycle = self._held.popleft()
            # A device error must reach the caller: it may be a kernel's failure, which is raised only once.
            ahead = 0 if progress.at_boundary else 1
            place = CurvePlace(progress.cycles + ahead, progress.updates + ahead, progress.at_boundary, at)
            self._curves.add(place, numbers_of(micro_step), numbers_of(cycle))
        with self._harmless():
            self._add(*self._curves.take())

    def _add(self, *events: Event) -> None:
        with self._lock:
            if self._log is None:
                return
            self._events.extend(events)
            self._untried += len(events)
            while len(self._events) > _MOST_EVENTS:
                del self._events[1]  # keeps the first event, which tells how the attempt began or is next to be stored
                self._left_out += 1

    def _has_paused(self, least: timedelta) -> bool:
        """Return whether the last segment is old enough for the age of the attempt, and older than ``least``."""
        now = self._monotonic()
        pause = min(_SHARE * (now - self._began_at), _LONGEST.total_seconds())
        return now - self._stored_at >= max(pause, least.total_seconds())

    @property
    def _is_storing(self) -> bool:
        """Whether the storage has not accepted earlier events yet."""
        return self._storer is not None and not (self._storer.has_ended or self._storer.is_lost)

    def _store_within(self, seconds: float) -> None:
        """Store the waiting events, and wait at most ``seconds``: a storage may retry for minutes."""
        if (storer := self._begin_storing(gives_way=False)) is not None:
            storer.wait(seconds)
            if self._is_storing:
                self._warn(f"the storage accepted none for {seconds:.1f} s")
            elif self._storers_error is not None:
                raise self._storers_error

    def _begin_storing(self, *, gives_way: bool) -> Worker | None:
        if self._log is None:
            return None
        try:  # nothing else is caught: the error of a signal handler may come here, and is training's
            self._storer = Worker(self._run, "ckptkit-events", gives_way=gives_way)
            self._storer.start()
        except (NoThreadError, MemoryError) as error:
            self._warn(f"{type(error).__name__}: {error}")
            return None
        return self._storer

    def _run(self) -> None:
        try:
            self._store()
        except BaseException as error:  # noqa: BLE001 - every error belongs to the thread that waits
            self._storers_error = error

    def _store(self) -> None:
        with self._harmless(), self._storing:
            assert self._log is not None  # noqa: S101 - without one there is nothing to store
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


def _described(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {"error": None, "message": ""}
    return {"error": plain_line(type(error).__name__, 128), "message": plain_line(message_of(error))}


def _how_of(error: BaseException) -> How:
    if isinstance(error, StaleAttemptError):
        return "overtaken"
    if isinstance(error, SystemExit) and error.code == EXIT_CODE:
        return "preempted"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


@dataclass(frozen=True)
class CurvePlace:
    cycle: int
    step: int
    ends: bool
    at: datetime


class Curves:
    """Thins the values of micro-steps into points that a plot can show, however long training runs.

    Each of the first `FINE` cycles has its own point; later ones share points, and a point never covers more than a
    `FINE`-th of the cycles before it. So the number of points grows with the logarithm of the attempt's length.
    """

    def __init__(self, half_seen: int | None = None) -> None:
        self._half_seen = half_seen  # a cycle that began before this attempt, whose means would be wrong
        self._names: dict[str, str] = {}  # as they are stored
        self._cycles, self._cycle = 0, -1  # how many have ended, and the last of them
        self._points: list[Point] = []
        # The running cycle
        self._place: CurvePlace | None = None
        self._values: dict[str, list[float]] = {}
        # The next point: where it begins and ends, its number of cycles, and their means
        self._first: CurvePlace | None = None
        self._last: CurvePlace | None = None
        self._covered = 0
        self._means: dict[str, array[float]] = {}

    def add(self, place: CurvePlace, micro_step: Mapping[str, float], cycle: Mapping[str, float]) -> None:
        if self._place is not None and self._place.cycle != place.cycle:
            self._end_cycle()
        self._place = place
        values = cycle if place.cycle == self._half_seen else {**micro_step, **cycle}
        for name, value in values.items():
            if name not in self._names and len(self._names) < MAX_CURVES:
                self._names[name] = plain_line(name, 128) or "?"
            if name in self._names:
                self._values.setdefault(self._names[name], []).append(value)
        if place.ends:
            self._end_cycle()

    def take(self, *, all_of_it: bool = False) -> list[Point]:
        """Return the completed points; with ``all_of_it`` also the last, incomplete one."""
        if all_of_it:
            self._end_point()
        points, self._points = self._points, []
        return points

    def _end_cycle(self) -> None:
        place, values = self._place, self._values
        self._place, self._values = None, {}
        if place is None or not values:
            return
        if place.cycle != self._cycle:
            self._cycle = place.cycle
            self._cycles += 1
            self._covered += 1
        self._first, self._last = self._first or place, place
        for name, numbers in values.items():
            self._means.setdefault(name, array("d")).append(sum(numbers) / len(numbers))
        if self._covered > (self._cycles - 1) // FINE:
            self._end_point()

    def _end_point(self) -> None:
        first, last = self._first, self._last
        if first is not None and last is not None:
            values = {name: _spread(means) for name, means in self._means.items()}
            begin, cycles = min(first.step, last.step), max(1, self._covered)
            self._points.append(
                Point(at=last.at.isoformat(), first=begin, last=last.step, cycles=cycles, values=values)
            )
        self._first = self._last = None
        self._covered, self._means = 0, {}


def _spread(means: Sequence[float]) -> Spread:
    finite = [mean for mean in means if math.isfinite(mean)]
    mean = sum(finite) / len(finite) if finite else math.nan
    if not math.isfinite(mean):
        return Spread(mean=None, low=None, high=None, not_finite=len(means))
    return Spread(mean=mean, low=min(finite), high=max(finite), not_finite=len(means) - len(finite))


def settled(values: Values) -> Values:
    """Return ``values`` with mutable ones read at once, and without those that are not a single number."""
    kept = {}
    for name, value in values.items():
        # A parameter's value changes in place; a tensor returned by a step does not.
        if not hasattr(value, "asnumpy") or _is_parameter(value.__class__):
            kept[name] = _number(value)
        elif getattr(value, "size", 1) == 1:
            kept[name] = value
    return kept


@functools.cache
def _is_parameter(kind: type) -> bool:
    return any(base.__name__ == "Parameter" for base in kind.__mro__)


def numbers_of(values: Values) -> dict[str, float]:
    """Return the numbers among ``values``; reads what is on a device, whose errors are raised here."""
    numbers = {name: _number(value) for name, value in values.items()}
    return {name: value for name, value in numbers.items() if value is not None}


def _number(value: Any) -> float | None:
    if value is None or type(value) is float:  # not those of NumPy, whose sums may raise
        return value
    if hasattr(value, "asnumpy") and not _has_one_item(value):
        value = value.asnumpy()
    try:
        return float(value.item() if _has_one_item(value) else value)
    except (TypeError, ValueError, OverflowError):
        return None


def _has_one_item(value: Any) -> bool:
    return getattr(value, "size", 1) == 1 and hasattr(value, "item")  # of a tensor, 20 times as fast as `asnumpy`
