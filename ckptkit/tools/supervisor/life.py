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

from ckptkit.manager.heartbeat import ENDING, STACKS_ENDING, VARIABLE, Phase, Record, read_record, read_records
from ckptkit.tools.supervisor.command import Command
from ckptkit.tools.supervisor.hang import Hang, RunLimits, Stack, Watch, crash_of, take_stacks
from ckptkit.tools.supervisor.processes import (
    END_SIGNALS,
    Requests,
    catches,
    descendants,
    end_all,
    has_ended,
    oom_kills,
    reap,
    send,
    status,
    watch_end,
)

_STDIN = 0
_POLL_EVERY = timedelta(seconds=0.5)
_LAUNCHER_SECONDS = 5.0  # for the launcher to end the ranks when one has died
_AT_ONCE = timedelta(seconds=5)  # from a second signal to SIGKILL, and for the last words on stderr
_SAME_SECONDS = 0.5  # launchers forward what the whole process group has received
GOOD_ENDS = (b"finished", b"closed", b"complete", b"preempted", b"exited")  # of a record's ``how``


@dataclass(frozen=True)
class Job:
    """Says what is run, and who hears of it."""

    command: Sequence[str]
    environment: Mapping[str, str]
    options: RunLimits
    say: Callable[[str], None]  # shows a line to the user
    pass_on: Callable[[bytes], None]  # gets what the command writes to stderr
    monotonic: Callable[[], float]  # gives seconds; the clock that the ranks use
    clock: Callable[[], datetime]  # gives the time of day
    # Called twice a second with the records of the ranks
    on_poll: Callable[[Sequence[Record]], None] = lambda records: None


@dataclass
class SupervisedLife:
    """Holds what is known of one life; times without a day are by the monotonic clock."""

    number: int  # from 1
    began_at: datetime
    began: float
    ended: float = 0.0  # when no process was left
    returncode: int = 0  # as `subprocess` has it
    records: Sequence[Record] = ()  # the last state of each rank, by rank
    deaths: dict[int, float] = field(default_factory=dict)  # processes of ranks in the order in which they ended
    asked: int | None = None  # the first signal by which its end was requested
    hang: Hang | None = None  # why it was ended here
    hang_phases: Mapping[int, Phase] = field(default_factory=dict)  # what each process did in the hang
    hang_from: float = 0.0  # the last sign of a process before it
    hang_until: float = 0.0  # when they were asked to end
    stacks: list[Stack] = field(default_factory=list)  # from a hang or a crash
    oom_kills: int = 0  # of the control group, by the kernel, meanwhile
    last_words: str = ""  # the end of stderr
    left: Sequence[int] = ()  # processes that could not be killed
    outlived: int = 0  # processes that still ran when the command had ended well
    is_folder_removed: bool = False  # by somebody, with the files in which its processes show themselves
    pid: int = 0  # of the command

    @property
    def ranks(self) -> Sequence[Record]:
        """The ranks of the training that began last; a command may run several, one after the other."""
        known = [record for record in self.records if record.attempt >= 0]
        last = max(known, key=lambda record: record.opened_at, default=None)
        if last is None:
            return self.records
        training = last.root, last.attempt
        return [record for record in self.records if record.attempt < 0 or (record.root, record.attempt) == training]

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class LifeRunner:
    def __init__(self, job: Job, requests: Requests) -> None:
        self._job = job
        self._requests = requests
        self._spared = descendants(os.getpid())  # were here before the first life
        try:
            self._stdin_at: int | None = os.lseek(_STDIN, 0, os.SEEK_CUR)
        except OSError:  # a pipe or a terminal
            self._stdin_at = None

    def run(self, number: int, folder: Path) -> SupervisedLife:
        """Run the command in a life that shows itself in ``folder``, which is new and empty.

        Raises CannotStartError if the program cannot be started.
        """
        job = self._job
        killed_before = oom_kills()
        life = SupervisedLife(number, job.clock(), job.monotonic())
        if self._stdin_at is not None:  # an earlier life has read it
            os.lseek(_STDIN, self._stdin_at, os.SEEK_SET)
        command = Command(job.command, {**job.environment, VARIABLE: str(folder)}, job.pass_on)
        life.pid = command.pid
        follower = _Follower(life, command, folder, job, self._requests)
        try:
            follower.follow()
            if command.has_ended() and command.returncode() == 0 and life.asked is None:
                life.outlived = len(descendants(os.getpid(), self._spared))
        finally:
            life.left = end_all(
                follower.grace(),
                monotonic=job.monotonic,
                wait=follower.wait_in_grace,
                keep=command.pid,
                spared=self._spared,
                asked=follower.asked_to_end,
            )
            life.returncode = command.returncode()
            reap()
            life.ended = job.monotonic()
            life.last_words = command.close(_AT_ONCE.total_seconds())
            life.records = follower.close()
        killed = oom_kills()
        life.oom_kills = 0 if killed is None or killed_before is None else max(0, killed - killed_before)
        return life


class _Follower:
    """Follows one command until it has ended."""

    def __init__(self, life: SupervisedLife, command: Command, folder: Path, job: Job, requests: Requests) -> None:
        self._life = life
        self._command = command
        self._folder = folder
        self._job = job
        self._requests = requests
        self._files: dict[str, Path] = {}  # of the folder, by name; open, so that they stay if somebody removes them
        self._last: dict[int, Record] = {}  # of processes that have ended, whose files are closed
        self._watch = Watch(job.options, lambda pid: (status(pid) or (None,))[0])
        self._ranks: dict[int, int | None] = {}  # process to the descriptor of its end
        self._kill_at: float | None = None
        self._asked_at = 0.0
        self._lost_at: float | None = None
        self._is_outlived = False  # whether the command had ended when it was asked last
        self.asked_to_end: set[int] = set()  # processes that were asked to end

    def grace(self) -> timedelta:
        """Return how long what is left may take to end."""
        if self._kill_at is None:
            return self._job.options.grace
        return timedelta(seconds=max(0.0, self._kill_at - self._job.monotonic()))

    def follow(self) -> None:
        try:
            while not self._is_over():
                self._poll()  # first: a signal goes to the ranks that there are now
                self._handle_signals()
                lost_seconds = 0.0 if self._lost_at is None else self._job.monotonic() - self._lost_at
                if lost_seconds > _LAUNCHER_SECONDS and self._kill_at is None and self._ranks:
                    self._ask_to_end(signal.SIGTERM)  # of those that wait for a lost rank, if their launcher does not
                reap(self._command.pid)
                ends = (*self._ranks.values(), None if self._is_outlived else self._command.end)
                self._requests.wait(_POLL_EVERY, [end for end in ends if end is not None])
                self._note_deaths()
                if self._kill_at is not None and self._job.monotonic() >= self._kill_at:
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
            self._close_files_of(record)
        for file in self._files.values():
            os.close(int(file.name))
        return sorted(self._last.values(), key=lambda record: (record.rank, record.pid))

    def _close_files_of(self, record: Record) -> None:
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
                self._job.say(f"{who}: the hang of a process that began just before is not noticed")
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
        self._poll()
        records = [read_record(self._files[f"{pid}{ENDING}"]) for pid in self._ranks]
        has_trained = all(record is None or record.phase is Phase.ENDED for record in records)
        return self._command.returncode() != 0 or has_trained

    def _poll(self) -> None:
        records = self._read()
        for record in records:
            if record.pid not in self._ranks and record.pid not in self._life.deaths:
                # It may have ended already; in a PID namespace of its own, it calls itself something else.
                with contextlib.suppress(ProcessLookupError):
                    if record.pid in descendants(os.getpid()):
                        self._ranks[record.pid] = watch_end(record.pid)
                if record.pid not in self._ranks:
                    self._life.deaths[record.pid] = self._job.monotonic()
            if record.pid in self._life.deaths and record.phase is Phase.ENDED:  # it had ended before it was met
                self._close_files_of(record)
        self._job.on_poll(records)
        if self._kill_at is None and self._lost_at is None and records:
            hang = self._watch.check(records, self._job.monotonic())
            if hang is not None:
                self._end_hang(hang, records)

    def _end_hang(self, hang: Hang, records: Sequence[Record]) -> None:
        self._life.hang, self._life.hang_phases = hang, {record.pid: record.phase for record in records}
        self._life.hang_from = self._job.monotonic() - hang.seconds
        living = [record for record in records if record.pid in self._ranks]
        self._life.stacks = take_stacks(living, self._files, monotonic=self._job.monotonic, wait=self._requests.wait)
        self._life.hang_until = self._job.monotonic()
        self._ask_to_end(signal.SIGTERM)

    def _handle_signals(self) -> None:
        for number in self._requests.take():
            is_received = number not in END_SIGNALS and self._pass_on(number, caught_only=True)
            if number in END_SIGNALS or (number == signal.SIGUSR1 and not is_received):
                # A rank that does not know SIGUSR1 would die of it. A terminal that is closed, or a time limit, is no
                # reason to lose what can still be saved.
                instead = number if number == signal.SIGINT else signal.SIGTERM
                now = self._job.monotonic()
                if self._life.asked is None:
                    self._life.asked = number
                    self._asked_at = now
                    self._ask_to_end(instead)
                elif now - self._asked_at > _SAME_SECONDS:  # asked a second time: kill it soon
                    self._pass_on(instead)
                    self._kill_at = now + _AT_ONCE.total_seconds()

    def _ask_to_end(self, number: int) -> None:
        self._kill_at = self._job.monotonic() + self._job.options.grace.total_seconds()
        self._pass_on(number)

    def _pass_on(self, number: int, *, caught_only: bool = False) -> bool:
        """Send a signal to the ranks, and return whether anybody got it.

        Data workers get none: without them the ranks could not end a batch. ``caught_only`` sends it only to those that
        have a handler for it.
        """
        ranks = [*self._ranks]
        if not ranks:  # the process group of the command
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(pid) == self._command.pid:
                        ranks.append(pid)
        receivers = [pid for pid in ranks if not caught_only or catches(pid, number)]
        send(receivers, number)
        send(receivers, signal.SIGCONT)
        self.asked_to_end.update([] if caught_only else receivers)
        return bool(receivers)

    def _note_deaths(self) -> None:
        for pid, descriptor in list(self._ranks.items()):
            if not has_ended(pid, descriptor):
                continue
            self._life.deaths[pid] = self._job.monotonic()
            self._ranks.pop(pid)
            if descriptor is not None:
                os.close(descriptor)
            record = read_record(self._files[f"{pid}{ENDING}"])
            if record is not None:
                self._close_files_of(record)
                if record.ranks > 1 and record.how not in GOOD_ENDS and self._lost_at is None:
                    self._lost_at = self._job.monotonic()
