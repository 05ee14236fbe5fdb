"""Tells a job that hangs from one that compiles, evaluates, replays or waits for a storage, and takes its stacks.

Guarantees: a job hangs only if no process of it has shown a sign within the limit of its phase, two looks in a row. The
time in which this process was suspended too does not count; neither do processes that have ended or wait for words of
other ranks. A signal for stacks goes only to a process that has a handler for it, so that none dies of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from ckptkit.format.events import MAX_STACK_LINES, plain_line
from ckptkit.manager.heartbeat import STACKS_ENDING, STACKS_SIGNAL, Phase, Record
from ckptkit.tools.supervisor.processes import catches, descendants, send, status

_HOUR = timedelta(hours=1)
_TIMES_SLOWEST = 20
_SUSPENDED_SECONDS = 10.0  # between two looks, of which there are two a second
_STOPPED = ("T", "t")
_STACKS_WITHIN_SECONDS = 3.0
_POLL_EVERY = timedelta(seconds=0.1)
_MOST_WORKERS = 8  # of one rank
_MOST_BYTES = 1 << 18
_NOTHING = Path(os.devnull)


@dataclass(frozen=True)
class RunLimits:
    """Says when a life has hung and when there is no other one."""

    lives_without_progress: int = 3  # so many lives in a row that commit nothing new are the last ones
    hang_after: timedelta = timedelta(minutes=10)  # the least time without a micro-step that is a hang
    # The same for other phases; an hour where there is none.
    limits: Mapping[Phase, timedelta] = field(default_factory=dict)
    grace: timedelta = timedelta(seconds=30)  # time from SIGTERM to SIGKILL
    restart_within: timedelta | None = None  # the longest time from a death to the next micro-step that is no error

    def limit(self, phase: Phase) -> timedelta:
        """Return how long a phase may go on without a sign; of training without regard to its micro-steps."""
        return self.limits.get(phase, self.hang_after if phase is Phase.TRAINING else _HOUR)


@dataclass(frozen=True)
class Hang:
    """Describes a job that hangs."""

    culprit: Record | None  # the process for which the others wait; None if that cannot be told
    seconds: float  # since the last sign of any process
    is_stopped: bool = False  # whether the culprit was stopped by a signal


class Watch:
    """Watches the processes of one life; ``state`` gives that of a process, such as ``T``, or None if it has ended."""

    def __init__(self, options: RunLimits, state: Callable[[int], str | None]) -> None:
        self._options = options
        self._state = state
        self._suspected_at: float | None = None
        self._checked_at: float | None = None
        self._since = float("-inf")

    def check(self, records: Sequence[Record], now: float) -> Hang | None:
        """Return the hang, if the job was suspected at the look before, too."""
        if self._checked_at is not None and now - self._checked_at > _SUSPENDED_SECONDS:
            self._since = now  # this process did not run either: the whole job was suspended
        self._checked_at = now
        states = {record.pid: self._state(record.pid) for record in records if self._is_late(record, now)}
        alive = [record for record in records if states.get(record.pid, "R") is not None]
        late = [record for record in alive if self._is_overdue(record, now, states.get(record.pid))]
        if not late or any(record not in late and not record.is_meeting for record in alive):
            self._suspected_at = None
            return None
        sign = max(self._sign_of(record) for record in alive)
        if self._suspected_at != sign:
            self._suspected_at = sign
            return None
        stopped = next((record for record in late if states.get(record.pid) in _STOPPED), None)
        return Hang(stopped or _behind(alive), now - sign, is_stopped=stopped is not None)

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
        if state in _STOPPED:  # no compilation takes that long
            limit = min(limit, self._options.hang_after.total_seconds())
        return now - self._sign_of(record) > limit


def _behind(records: Sequence[Record]) -> Record | None:
    """Return the only process that the others are ahead of, or that does not wait for the others; None if none is."""

    def place(record: Record) -> tuple[int, int, int]:
        return record.micro_step, record.begun_step, record.is_meeting

    first, *others = sorted(records, key=place)
    return first if not others or place(first) < place(others[0]) else None


@dataclass(frozen=True)
class Stack:
    """Holds the stacks of one process, as `faulthandler` wrote them, or why there are none.

    ``rank`` is its own, or that of the rank that it works for; None if unknown.
    """

    rank: int | None
    pid: int
    lines: Sequence[str]


def take_stacks(
    records: Sequence[Record],
    files: Mapping[str, Path],
    *,
    monotonic: Callable[[], float],
    wait: Callable[[timedelta], None],
) -> list[Stack]:
    """Return the stacks of each rank and of its data workers, from the ``files`` of the ranks by name.

    What a process does not show in time is left out.
    """
    stacks = []
    for record in records:
        file = files.get(f"{record.pid}{STACKS_ENDING}", _NOTHING)
        for pid in [record.pid, *descendants(record.pid)[:_MOST_WORKERS]]:
            lines = _lines_of(pid, file, monotonic, wait)
            if lines:
                stacks.append(Stack(record.rank if record.rank >= 0 else None, pid, lines))
    return stacks


def crash_of(pid: int, files: Mapping[str, Path]) -> Sequence[str]:
    """Return what `faulthandler` wrote when the process crashed, if it did."""
    lines = _read(files.get(f"{pid}{STACKS_ENDING}", _NOTHING), 0).splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    return _bounded(lines[begin:]) if begin is not None else []


def _lines_of(pid: int, file: Path, monotonic: Callable[[], float], wait: Callable[[timedelta], None]) -> Sequence[str]:
    process = status(pid)
    if process is None:
        return []
    if process[0] in _STOPPED:
        return ["the process is stopped by a signal, so it cannot show its stacks"]
    if file == _NOTHING or not catches(pid, STACKS_SIGNAL):
        return []
    begin = file.stat().st_size
    send([pid], STACKS_SIGNAL)
    text, until = "", monotonic() + _STACKS_WITHIN_SECONDS
    while monotonic() < until:
        wait(_POLL_EVERY)
        before, text = text, _read(file, begin)
        if text and text == before:
            break
    return _bounded(text.splitlines()) or ["the process did not answer: it is held by the kernel"]


def _read(file: Path, begin: int) -> str:
    with file.open("rb") as opened:
        opened.seek(begin)
        return opened.read(_MOST_BYTES).decode(errors="replace")


def _bounded(lines: Sequence[str]) -> list[str]:
    # Not plain_line: the indentation tells the frames from the threads.
    return [plain_line(f"|{line}")[1:] for line in lines[:MAX_STACK_LINES]]
