"""Tells a job that hangs from one that compiles, evaluates, replays or waits for a storage.

Guarantees: a job hangs only if no process of it has shown a sign within the limit of its phase, two looks in a row. The
time in which this process was suspended too does not count. A process that waits for words of other ranks does not
count, and neither does one that has ended. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ckptkit.manager.heartbeat.record import Phase, Record
from ckptkit.tools.supervisor.options import Options

_TIMES_SLOWEST = 20
_SUSPENDED = timedelta(seconds=10)  # between two looks, of which there are two a second
_STOPPED = "Tt"


@dataclass(frozen=True)
class Hang:
    """Describes a job that hangs.

    Attributes:
        culprit: The process for which the others wait; None if that cannot be told.
        seconds: Since the last sign of any process.
        phase: What the culprit does, or the first of those that are late.
        is_stopped: Whether the culprit was stopped by a signal.
    """

    culprit: Record | None
    seconds: float
    phase: Phase
    is_stopped: bool = False


class Watch:
    """Watches the processes of one life.

    Args:
        options: The limits.
        state: Returns the state of a process, such as ``T``, or None if it has ended.
    """

    def __init__(self, options: Options, state: Callable[[int], str | None]) -> None:
        self._options = options
        self._state = state
        self._suspected_at: float | None = None
        self._looked_at: float | None = None
        self._since = float("-inf")

    def look(self, records: Sequence[Record], now: float) -> Hang | None:
        """Return the hang, if the job was found so at the look before, too."""
        if self._looked_at is not None and now - self._looked_at > _SUSPENDED.total_seconds():
            self._since = now  # this process did not run either: the whole job was suspended
        self._looked_at = now
        states = {one.pid: self._state(one.pid) for one in records if self._is_late(one, now)}
        alive = [one for one in records if states.get(one.pid, "R") is not None]
        late = [one for one in alive if self._is_overdue(one, now, states.get(one.pid))]
        if not late or any(one not in late and not one.is_meeting for one in alive):
            self._suspected_at = None
            return None
        sign = max(self._sign_of(one) for one in alive)
        if self._suspected_at != sign:
            self._suspected_at = sign
            return None
        return _hang(alive, late, states, now - sign)

    def _is_late(self, record: Record, now: float) -> bool:
        """Return whether it is worth a look at the process itself."""
        least = min(self._options.hang_after, self._options.limit(record.phase))
        return now - self._sign_of(record) > least.total_seconds()

    def _sign_of(self, record: Record) -> float:
        """Return when the process got on last, or could again."""
        return max(record.last_sign_at, self._since)

    def _is_overdue(self, record: Record, now: float, state: str | None) -> bool:
        limit = self._options.limit(record.phase).total_seconds()
        if record.phase is Phase.TRAINING:
            limit = max(limit, _TIMES_SLOWEST * record.slowest)
        if state is not None and state in _STOPPED:  # no compilation takes that long
            limit = min(limit, self._options.hang_after.total_seconds())
        return now - self._sign_of(record) > limit


def _hang(alive: Sequence[Record], late: Sequence[Record], states: dict[int, str | None], seconds: float) -> Hang:
    for one in late:
        if (states.get(one.pid) or "R") in _STOPPED:
            return Hang(one, seconds, one.phase, is_stopped=True)
    culprit = _behind(alive)
    return Hang(culprit, seconds, late[0].phase if culprit is None else culprit.phase)


def _behind(records: Sequence[Record]) -> Record | None:
    """Return the only process that the others are ahead of, or that does not wait for the others; None if none is."""
    if len(records) == 1:
        return records[0]
    places = sorted(records, key=lambda one: (one.micro_step, one.begun_step, one.is_meeting))
    first, second = places[:2]
    if (first.micro_step, first.begun_step, first.is_meeting) < (
        second.micro_step,
        second.begun_step,
        second.is_meeting,
    ):
        return first
    return None
