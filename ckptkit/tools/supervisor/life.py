"""Runs one life of the command: from its start until none of its processes is left.

Guarantees: when `LifeRunner.run` returns, or raises, no process of that life runs any more, but those that the kernel
holds. A signal to this process reaches the ranks themselves, since launchers do not pass it on; where no rank is known,
it reaches the whole process group. A second one ends the job at once. Main thread only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ckptkit.manager.heartbeat.record import ENDING, VARIABLE, Record, read_record, read_records
from ckptkit.tools.supervisor.cgroup import oom_kills
from ckptkit.tools.supervisor.launch import Command
from ckptkit.tools.supervisor.options import Options
from ckptkit.tools.supervisor.processes import end_all, reap, send, status
from ckptkit.tools.supervisor.requests import Requests
from ckptkit.tools.supervisor.stacks import Stack, crash_of, take_stacks
from ckptkit.tools.supervisor.watch import Hang, Watch

_LOOK = timedelta(seconds=0.5)
_LAUNCHER = timedelta(seconds=5)  # for the launcher to end the ranks when one has died
_AT_ONCE = timedelta(seconds=5)  # from a second signal to SIGKILL, and for the last words on stderr
_GOOD_ENDS = (b"finished", b"closed", b"complete", b"preempted")
_SIGNALS_OF_THE_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass
class Life:
    """Holds what is known of one life.

    Attributes:
        number: From 1.
        began_at: When the command was started.
        began: The same by the monotonic clock.
        ended: When no process was left, by the monotonic clock.
        returncode: As `subprocess` has it.
        records: The last state of each rank, by rank.
        deaths: Processes of ranks in the order in which they ended, as far as seen.
        asked: The first signal by which its end was requested, if it was.
        hang: Why it was ended here.
        stacks: Taken from a hang or a crash.
        oom_kills: How many processes of the control group the kernel killed meanwhile.
        last_words: The end of stderr.
        left: Processes that could not be killed.
    """

    number: int
    began_at: datetime
    began: float
    ended: float = 0.0
    returncode: int = 0
    records: Sequence[Record] = ()
    deaths: list[int] = field(default_factory=list)
    asked: int | None = None
    hang: Hang | None = None
    stacks: list[Stack] = field(default_factory=list)
    oom_kills: int = 0
    last_words: str = ""
    left: Sequence[int] = ()

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.ended - self.began


class LifeRunner:
    """Runs lives of one command.

    Args:
        command: Program and arguments.
        options: Limits.
        requests: The signals of this process.
        environment: The variables of the command, without those set here.
        monotonic: Gives seconds; the clock that the ranks use.
        clock: Gives the time of day.
        on_look: Called with the records at every look.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Options,
        requests: Requests,
        environment: Mapping[str, str],
        *,
        monotonic: Callable[[], float],
        clock: Callable[[], datetime],
        on_look: Callable[[Sequence[Record]], None] = lambda records: None,
    ) -> None:
        self._command = command
        self._options = options
        self._requests = requests
        self._environment = environment
        self._monotonic = monotonic
        self._clock = clock
        self._on_look = on_look

    def run(self, number: int, folder: Path) -> Life:
        """Run the command in a life that shows itself in ``folder``, which is new and empty.

        Raises:
            OSError: If the program cannot be started.
        """
        killed_before = oom_kills()
        life = Life(number, self._clock(), self._monotonic())
        command = Command(self._command, {**self._environment, VARIABLE: str(folder)})
        try:
            follower = _Follower(
                life, command, folder, self._options, self._requests, monotonic=self._monotonic, on_look=self._on_look
            )
            follower.follow()
        finally:
            grace = timedelta(0) if life.hang or life.asked is not None else self._options.grace
            life.left = end_all(grace, monotonic=self._monotonic, wait=self._requests.wait, keep=command.pid)
            life.returncode = command.returncode()
            reap()
            life.ended = self._monotonic()
            life.last_words = command.close(_AT_ONCE.total_seconds())
        life.records = read_records(folder)
        killed = oom_kills()
        life.oom_kills = 0 if killed is None or killed_before is None else max(0, killed - killed_before)
        for one in life.records:
            if not life.hang and (lines := crash_of(one.pid, folder)):
                life.stacks.append(Stack(one.rank if one.rank >= 0 else None, one.pid, lines))
        return life


class _Follower:
    """Follows one command until it has ended."""

    def __init__(
        self,
        life: Life,
        command: Command,
        folder: Path,
        options: Options,
        requests: Requests,
        *,
        monotonic: Callable[[], float],
        on_look: Callable[[Sequence[Record]], None],
    ) -> None:
        self._life = life
        self._command = command
        self._folder = folder
        self._options = options
        self._requests = requests
        self._monotonic = monotonic
        self._on_look = on_look
        self._watch = Watch(options, lambda pid: (status(pid) or (None,))[0])
        self._ranks: dict[int, int] = {}  # process to descriptor of its end
        self._kill_at: float | None = None
        self._lost_at: float | None = None

    def follow(self) -> None:
        try:
            while not self._has_ended(self._command.end):
                self._look()  # first: a signal goes to the ranks that there are now
                self._heed()
                self._end_others()
                reap(self._command.pid)
                self._requests.wait(_LOOK, [self._command.end, *self._ranks.values()])
                self._note_deaths()
                if self._kill_at is not None and self._monotonic() >= self._kill_at:
                    return  # the caller kills what is left
        finally:
            for descriptor in self._ranks.values():
                os.close(descriptor)

    def _look(self) -> None:
        records = read_records(self._folder)
        for one in records:
            if one.pid not in self._ranks and one.pid not in self._life.deaths:
                try:
                    self._ranks[one.pid] = os.pidfd_open(one.pid)
                except ProcessLookupError:
                    self._life.deaths.append(one.pid)
        self._on_look(records)
        if self._kill_at is None and self._lost_at is None and records:
            hang = self._watch.look(records, self._monotonic())
            if hang is not None:
                self._end_hang(hang, records)

    def _end_hang(self, hang: Hang, records: Sequence[Record]) -> None:
        self._life.hang = hang
        wait = self._requests.wait
        self._life.stacks = take_stacks(records, self._folder, monotonic=self._monotonic, wait=wait)
        self._ask_to_end(signal.SIGTERM, self._options.grace)

    def _heed(self) -> None:
        for number in self._requests.take():
            again = self._life.asked is not None
            if number == signal.SIGUSR1:
                self._pass_on(number)
            elif again:
                self._pass_on(number)
                self._kill_at = self._monotonic() + _AT_ONCE.total_seconds()
            if number in _SIGNALS_OF_THE_END and not again:
                self._life.asked = number
                # A terminal that is closed is no reason to lose what can still be saved.
                self._ask_to_end(signal.SIGTERM if number == signal.SIGHUP else number, self._options.grace)

    def _ask_to_end(self, number: int, grace: timedelta) -> None:
        self._kill_at = self._monotonic() + grace.total_seconds()
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        """Send a signal to the ranks: not to their data workers, without which they could not end a batch."""
        if self._ranks:
            send(self._ranks, number)
            send(self._ranks, signal.SIGCONT)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._command.pid, number)
            os.killpg(self._command.pid, signal.SIGCONT)

    def _note_deaths(self) -> None:
        for pid, descriptor in list(self._ranks.items()):
            if self._has_ended(descriptor):
                self._life.deaths.append(pid)
                os.close(self._ranks.pop(pid))
                record = read_record(self._folder / f"{pid}{ENDING}")
                if record is not None and record.ranks > 1 and record.how not in _GOOD_ENDS:
                    self._lost_at = self._monotonic() if self._lost_at is None else self._lost_at

    def _end_others(self) -> None:
        """End the ranks that wait for one that has died, if their launcher does not."""
        if self._lost_at is None or self._kill_at is not None or not self._ranks:
            return
        if self._monotonic() - self._lost_at > _LAUNCHER.total_seconds():
            self._ask_to_end(signal.SIGTERM, self._options.grace)

    @staticmethod
    def _has_ended(descriptor: int) -> bool:
        return bool(select.select([descriptor], [], [], 0)[0])
