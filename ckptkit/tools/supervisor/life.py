"""Runs one life of the command: from its start until none of its processes is left.

Guarantees: when `LifeRunner.run` returns, or raises, no process of that life runs any more, except those that cannot
be killed. A signal to this process reaches the ranks themselves, since launchers do not pass it on; where no rank is
known, it reaches the whole process group. A second one ends the job at once. A command that has ended successfully
counts as running while one of its ranks trains. Main thread only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ckptkit.manager.heartbeat.record import ENDING, STACKS_ENDING, VARIABLE, Phase, Record, read_record, read_records
from ckptkit.tools.supervisor.cgroup import oom_kills
from ckptkit.tools.supervisor.launch import Command
from ckptkit.tools.supervisor.options import Options
from ckptkit.tools.supervisor.processes import (
    catches,
    descendants,
    end_all,
    group_of,
    has_ended,
    named,
    reap,
    send,
    status,
    watch_end,
)
from ckptkit.tools.supervisor.requests import END_SIGNALS, Requests
from ckptkit.tools.supervisor.stacks import Stack, crash_of, take_stacks
from ckptkit.tools.supervisor.watch import Hang, Watch

_STDIN = 0
_LOOK = timedelta(seconds=0.5)
_LAUNCHER = timedelta(seconds=5)  # for the launcher to end the ranks when one has died
_AT_ONCE = timedelta(seconds=5)  # from a second signal to SIGKILL, and for the last words on stderr
_SAME = timedelta(seconds=0.5)  # launchers forward what the whole process group has received
GOOD_ENDS = (b"finished", b"closed", b"complete", b"preempted", b"exited")  # of a record's ``how``


@dataclass
class Life:
    """Holds what is known of one life.

    Attributes:
        number: From 1.
        pid: The process of the command.
        began_at: When the command was started.
        began: The same by the monotonic clock.
        ended: When no process was left, by the monotonic clock.
        returncode: As `subprocess` has it.
        records: The last state of each rank, by rank.
        deaths: Processes of ranks in the order in which they ended, as far as seen, and when, by the monotonic clock.
        asked: The first signal by which its end was requested, if it was.
        hang: Why it was ended here.
        hang_phases: What each process did in the hang.
        hang_from: The last sign of a process before it, by the monotonic clock.
        hang_until: When they were asked to end.
        stacks: Taken from a hang or a crash.
        oom_kills: How many processes of the control group the kernel killed meanwhile.
        last_words: The end of stderr.
        left: Processes that could not be killed.
        outlived: Processes that still ran when the command had ended well.
        is_folder_removed: Whether somebody removed the folder in which its processes show themselves.
    """

    number: int
    began_at: datetime
    began: float
    ended: float = 0.0
    returncode: int = 0
    records: Sequence[Record] = ()
    deaths: dict[int, float] = field(default_factory=dict)
    asked: int | None = None
    hang: Hang | None = None
    hang_phases: Mapping[int, Phase] = field(default_factory=dict)
    hang_from: float = 0.0
    hang_until: float = 0.0
    stacks: list[Stack] = field(default_factory=list)
    oom_kills: int = 0
    last_words: str = ""
    left: Sequence[int] = ()
    outlived: int = 0
    is_folder_removed: bool = False
    pid: int = 0

    @property
    def ranks(self) -> Sequence[Record]:
        """The ranks of the training that began last; a command may run several, one after the other."""
        known = [one for one in self.records if one.attempt >= 0]
        last = max(known, key=lambda one: one.opened_at, default=None)
        if last is None:
            return self.records
        return [one for one in self.records if one.attempt < 0 or (one.root, one.attempt) == (last.root, last.attempt)]

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
        pass_on: Gets what the command writes to stderr.
        say: Shows a line to the user.
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
        pass_on: Callable[[bytes], None],
        say: Callable[[str], None],
        on_look: Callable[[Sequence[Record]], None] = lambda records: None,
    ) -> None:
        self._pass_on = pass_on
        self._say = say
        self._spared = descendants(os.getpid())  # were here before the first life
        self._stdin_at = _position_of_stdin()
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
            CannotStartError: If the program cannot be started.
        """
        killed_before = oom_kills()
        life = Life(number, self._clock(), self._monotonic())
        if self._stdin_at is not None:  # an earlier life has read it
            os.lseek(_STDIN, self._stdin_at, os.SEEK_SET)
        command = Command(self._command, {**self._environment, VARIABLE: str(folder)}, self._pass_on)
        life.pid = command.pid
        follower = _Follower(
            *(life, command, folder, self._options, self._requests),
            monotonic=self._monotonic,
            say=self._say,
            on_look=self._on_look,
        )
        try:
            follower.follow()
            if command.has_ended() and command.returncode() == 0 and life.asked is None:
                life.outlived = len(descendants(os.getpid(), self._spared))
        finally:
            life.left = end_all(
                follower.grace(),
                monotonic=self._monotonic,
                wait=follower.wait_in_grace,
                keep=command.pid,
                spared=self._spared,
                told=follower.told,
            )
            life.returncode = command.returncode()
            reap()
            life.ended = self._monotonic()
            life.last_words = command.close(_AT_ONCE.total_seconds())
            life.records = follower.close()
        killed = oom_kills()
        life.oom_kills = 0 if killed is None or killed_before is None else max(0, killed - killed_before)
        return life


def _position_of_stdin() -> int | None:
    """Return the place in stdin at which lives begin to read; None if it has none, as a pipe or a terminal."""
    try:
        return os.lseek(_STDIN, 0, os.SEEK_CUR)
    except OSError:
        return None


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
        say: Callable[[str], None],
        on_look: Callable[[Sequence[Record]], None],
    ) -> None:
        self._life = life
        self._command = command
        self._folder = folder
        self._options = options
        self._requests = requests
        self._monotonic = monotonic
        self._say = say
        self._on_look = on_look
        self._files: dict[str, Path] = {}  # of the folder, by name; open, so that they stay if somebody removes them
        self._last: dict[int, Record] = {}  # of processes that have ended, whose files are closed
        self._watch = Watch(options, lambda pid: (status(self._seen_as.get(pid, pid)) or (None,))[0])
        self._ranks: dict[int, int | None] = {}  # process, as it calls itself, to the descriptor of its end
        self._seen_as: dict[int, int] = {}  # its number here
        self._kill_at: float | None = None
        self._asked_at = 0.0
        self._lost_at: float | None = None
        self._is_outlived = False  # whether the command had ended when it was asked last
        self.told: set[int] = set()  # processes that were asked to end

    def grace(self) -> timedelta:
        """Return how long what is left may take to end."""
        if self._kill_at is None:
            return self._options.grace
        return timedelta(seconds=max(0.0, self._kill_at - self._monotonic()))

    def follow(self) -> None:
        try:
            while not self._is_over():
                self._look()  # first: a signal goes to the ranks that there are now
                self._heed()
                self._end_others()
                reap(self._command.pid)
                ends = (*self._ranks.values(), None if self._is_outlived else self._command.end)
                self._requests.wait(_LOOK, [one for one in ends if one is not None])
                self._note_deaths()
                if self._kill_at is not None and self._monotonic() >= self._kill_at:
                    return  # the caller kills what is left
        finally:
            for descriptor in self._ranks.values():
                if descriptor is not None:
                    os.close(descriptor)

    def wait_in_grace(self, timeout: timedelta) -> bool:
        """Wait; return whether a signal has come, which ends the grace and lets no other life begin."""
        self._requests.wait(timeout)
        asked = [number for number in self._requests.take() if number in END_SIGNALS]
        self._life.asked = self._life.asked or next(iter(asked), None)
        return bool(asked)

    def close(self) -> Sequence[Record]:
        """Return the last records, and let their files go."""
        for record in self._read():
            self._let_go(record)
        for file in self._files.values():
            os.close(int(file.name))
        return sorted(self._last.values(), key=lambda record: (record.rank, record.pid))

    def _let_go(self, record: Record) -> None:
        """Read for the last time what a process wrote, and close its files: a life may have thousands of processes."""
        if record.pid in self._last:
            return
        self._last[record.pid] = record
        if not self._life.hang and (lines := crash_of(record.pid, self._files)):
            self._life.stacks.append(Stack(record.rank if record.rank >= 0 else None, record.pid, lines))
        for ending in (ENDING, STACKS_ENDING):
            if (file := self._files.pop(f"{record.pid}{ending}", None)) is not None:
                os.close(int(file.name))

    def _read(self) -> Sequence[Record]:
        if not self._folder.exists():
            with contextlib.suppress(OSError):  # those that begin later say themselves that they are not followed
                self._folder.mkdir(mode=0o700)
            if not self._life.is_folder_removed:
                who = f"{self._folder} was removed, as by a logout or a scheduler's epilog, and is made again"
                self._say(f"{who}: the hang of a process that began just before is not noticed")
            self._life.is_folder_removed = True
        with contextlib.suppress(FileNotFoundError):
            for name in {*os.listdir(self._folder)} - {*self._files}:
                if int(name.partition(".")[0]) in self._last:
                    continue
                descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._files[name] = Path(f"/proc/self/fd/{descriptor}")
        living = read_records(file for name, file in self._files.items() if name.endswith(ENDING))
        return sorted((*self._last.values(), *living), key=lambda record: (record.rank, record.pid))

    def _is_over(self) -> bool:
        """Return whether the command has ended, and so have, if it ended well, the ranks that still train."""
        self._is_outlived = self._command.has_ended()
        if not self._is_outlived:
            return False
        self._look()
        records = [read_record(self._files[f"{pid}{ENDING}"]) for pid in self._ranks]
        return self._command.returncode() != 0 or all(one is None or one.phase is Phase.ENDED for one in records)

    def _look(self) -> None:
        records = self._read()
        for one in records:
            if one.pid not in self._ranks and one.pid not in self._life.deaths:
                self._meet(one.pid)
            if one.pid in self._life.deaths and one.phase is Phase.ENDED:  # it had ended before it was met
                self._let_go(one)
        self._on_look(records)
        if self._kill_at is None and self._lost_at is None and records:
            hang = self._watch.look(records, self._monotonic())
            if hang is not None:
                self._end_hang(hang, records)

    def _meet(self, pid: int) -> None:
        """Note a rank, which may have ended already."""
        seen_as = named(pid)
        with contextlib.suppress(ProcessLookupError):
            if seen_as is not None:
                self._ranks[pid], self._seen_as[pid] = watch_end(seen_as), seen_as
                return
        self._life.deaths[pid] = self._monotonic()

    def _end_hang(self, hang: Hang, records: Sequence[Record]) -> None:
        self._life.hang, self._life.hang_phases = hang, {one.pid: one.phase for one in records}
        self._life.hang_from = self._monotonic() - hang.seconds
        wait = self._requests.wait
        self._life.stacks = take_stacks(
            records, self._files, seen_as=self._seen_as, monotonic=self._monotonic, wait=wait
        )
        self._life.hang_until = self._monotonic()
        self._ask_to_end(signal.SIGTERM, self._options.grace)

    def _heed(self) -> None:
        for number in self._requests.take():
            is_heard = number not in END_SIGNALS and self._pass_on(number, caught_only=True)
            if number in END_SIGNALS or (number == signal.SIGUSR1 and not is_heard):
                # A rank that does not know SIGUSR1 would die of it. A terminal that is closed, or a time limit, is no
                # reason to lose what can still be saved.
                self._ask(number, number if number == signal.SIGINT else signal.SIGTERM)

    def _ask(self, number: int, instead: int) -> None:
        """Ask the job to end; a second time, kill it soon."""
        now = self._monotonic()
        if self._life.asked is None:
            self._life.asked, self._asked_at = number, now
            self._ask_to_end(instead, self._options.grace)
        elif now - self._asked_at > _SAME.total_seconds():
            self._pass_on(instead)
            self._kill_at = now + _AT_ONCE.total_seconds()

    def _ask_to_end(self, number: int, grace: timedelta) -> None:
        self._kill_at = self._monotonic() + grace.total_seconds()
        self._pass_on(number)

    def _pass_on(self, number: int, *, caught_only: bool = False) -> bool:
        """Send a signal to the ranks: not to their data workers, without which they could not end a batch.

        Args:
            number: The signal.
            caught_only: Whether only to those that have a handler for it.

        Returns:
            Whether anybody got it.
        """
        ranks = [self._seen_as[pid] for pid in self._ranks] or group_of(self._command.pid)
        heard = [one for one in ranks if not caught_only or catches(one, number)]
        send(heard, number)
        send(heard, signal.SIGCONT)
        self.told.update([] if caught_only else heard)
        return bool(heard)

    def _note_deaths(self) -> None:
        for pid, descriptor in list(self._ranks.items()):
            if has_ended(self._seen_as[pid], descriptor):
                self._life.deaths[pid] = self._monotonic()
                self._ranks.pop(pid)
                if descriptor is not None:
                    os.close(descriptor)
                record = read_record(self._files[f"{pid}{ENDING}"])
                if record is None:
                    continue
                self._let_go(record)
                if record.ranks > 1 and record.how not in GOOD_ENDS:
                    self._lost_at = self._monotonic() if self._lost_at is None else self._lost_at

    def _end_others(self) -> None:
        """End the ranks that wait for one that has died, if their launcher does not."""
        if self._lost_at is None or self._kill_at is not None or not self._ranks:
            return
        if self._monotonic() - self._lost_at > _LAUNCHER.total_seconds():
            self._ask_to_end(signal.SIGTERM, self._options.grace)
