"""Runs a command until it is done, must not be repeated, or has used up its lives.

Guarantees: no process of a life runs while there is none, between two lives and at the end. Every life is told in a
line or two, with the next move, and is stored as an event of the run if its root is known. A signal in a pause ends it.
What the last life had committed and not uploaded to the run's mirrors is uploaded at the end. Main thread only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from ckptkit.core.text import ENDS, many, signal_name, span
from ckptkit.core.worker import Latch, Worker
from ckptkit.format.events import LifeEnded
from ckptkit.storage import Storage
from ckptkit.tools.copy.left_behind import upload_left_behind
from ckptkit.tools.supervisor.diagnosis import DONE, TOO_SLOW, RestartBudget, RestartDecision, diagnose
from ckptkit.tools.supervisor.life import Job, LifeRunner, SupervisedLife
from ckptkit.tools.supervisor.life_log import LifeLog, Recovery, leader_of
from ckptkit.tools.supervisor.processes import END_SIGNALS, Requests, become_reaper

_POLL_EVERY = timedelta(seconds=0.1)
_LONGEST_PAUSE = timedelta(minutes=5)
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
_PREFIX = "ckptkit-run-"
_SHOWN_SECONDS = 0.001  # of a phase; less is not worth a word


class Supervisor:
    """Runs the lives of one job.

    ``token`` is 32 random hexadecimal digits; ``open_root`` opens the root of a run, to store events there; ``on_life``
    is called with each life that has ended, as it is stored.
    """

    def __init__(
        self,
        job: Job,
        *,
        token: str,
        open_root: Callable[[str], Storage],
        on_life: Callable[[LifeEnded], None] = lambda life: None,
    ) -> None:
        self._job = job
        self._on_life = on_life
        self._budget = RestartBudget(job.options.lives_without_progress)
        self._life_log = LifeLog(token, open_root, job.say)
        self._open_root = open_root
        self._recovery = Recovery()
        self._was_slow = False
        self._homes: tuple[str, list[str]] = ("", [])  # root and mirrors of the training that began last
        self._is_known = False  # whether the command has shown a training

    def run(self) -> int:
        """Run the command to its end and return the exit code.

        Raises CannotStartError if the program cannot be started, and OSError if no folder can be made.
        """
        become_reaper()
        requests = Requests()
        try:
            exit_code = self._run_lives(requests)
            self._upload_left_behind(requests)
            return exit_code or (TOO_SLOW if self._was_slow else DONE)
        finally:
            requests.close()

    def _run_lives(self, requests: Requests) -> int:
        runner = LifeRunner(self._job, requests)
        number, down_seconds = 0, 0.0
        while True:
            number += 1
            with heartbeat_folder() as folder:
                life = runner.run(number, folder)
            decision = self._budget.judge(life, diagnose(life))
            self._report(life, decision)
            leader = leader_of(life.records)
            if leader is not None and leader.rank <= 0 and leader.root:
                self._homes = leader.text("root"), leader.text("mirrors").splitlines()
            event = self._life_log.enter(life, decision, down_seconds)
            self._check_recovery(life, event)
            self._on_life(event)
            if decision.exit_code is not None:
                return decision.exit_code
            asked = life.asked or self._pause(requests, decision)  # also what came while a hang was ended
            if asked is not None:
                self._job.say(f"{signal_name(asked)} arrived: no other life begins")
                return 128 + asked if asked == signal.SIGINT else 143
            down_seconds = self._job.monotonic() - life.ended

    def _check_recovery(self, life: SupervisedLife, event: LifeEnded) -> None:
        seconds, within = self._recovery.end(life, event), self._job.options.restart_within
        if seconds is None or within is None or sum(seconds.values()) <= within.total_seconds():
            return
        self._was_slow = True
        phases = ", ".join(f"{name} {span(value)}" for name, value in seconds.items() if value >= _SHOWN_SECONDS)
        self._job.say(
            f"from the last death to the first micro-step of life {life.number} it took {span(sum(seconds.values()))}: "
            f"--restart-within allows {span(within.total_seconds())} (exit code {TOO_SLOW}). By phase: {phases}"
        )

    def _upload_left_behind(self, requests: Requests) -> None:
        """Upload what the last life has left, in a thread of its own: a signal ends the wait for it."""
        ended = Latch()

        def upload() -> None:
            try:
                upload_left_behind(*self._homes, self._open_root, self._job.say)
            finally:
                ended.open()

        Worker(upload, "ckptkit-left-behind").start()
        while not ended.is_open:
            if any(number in END_SIGNALS for number in requests.take()):
                self._job.say("the upload is broken off; the next start completes it")
                return
            requests.wait(_POLL_EVERY)

    def _pause(self, requests: Requests, decision: RestartDecision) -> int | None:
        """Wait before the next life; return the signal that asks for the end, if one comes."""
        pause = pause_before(decision.in_a_row)
        self._job.say(f"the next life begins {f'in {pause.total_seconds():g} s' if pause else 'now'}")
        until = self._job.monotonic() + pause.total_seconds()
        while True:
            asked = [number for number in requests.take() if number in (*END_SIGNALS, signal.SIGUSR1)]
            if asked:
                return asked[0]
            left = until - self._job.monotonic()
            if left <= 0:
                return None
            requests.wait(timedelta(seconds=left))

    def _report(self, life: SupervisedLife, decision: RestartDecision) -> None:
        say, finding = self._job.say, decision.finding
        lasted = timedelta(seconds=round(life.seconds))
        say(f"life {life.number} ended after {lasted}: {ENDS.get(finding.cause, finding.cause)}: {finding.why}")
        if life.left:
            who = ", ".join(map(str, life.left))
            say(f"these processes could not be killed: {who}; the kernel holds them, or they are another user's")
        if life.outlived and not life.records:
            say(
                f"the command ended while {many(life.outlived, 'process', 'processes')} of it still ran, which were "
                "ended too: what it starts has to end before it (msrun: --join=True)"
            )
        self._is_known = self._is_known or bool(life.records) or life.is_folder_removed
        if decision.exit_code is None and not self._is_known:
            say(
                "the command has shown no ckptkit callback or manager: only its exit code is known, and a restart may "
                "repeat everything"
            )
        if decision.exit_code is not None and decision.next_move != "done":
            say(f"no other life begins (exit code {decision.exit_code}): {decision.next_move}")


def pause_before(lives_without_progress: int) -> timedelta:
    """Return the pause before the next life: none after progress, else a second, and each time twice as long."""
    if lives_without_progress == 0:
        return timedelta(0)
    return min(_LONGEST_PAUSE, timedelta(seconds=2 ** min(lives_without_progress - 1, 30)))


@contextlib.contextmanager
def heartbeat_folder(in_memory: Path = _IN_MEMORY) -> Iterator[Path]:
    """Make a private folder in which the processes of a life show themselves, and remove it in the end.

    It is in memory, or, where that cannot be written, among temporary files. What supervisors that were killed have
    left is removed too: each holds a lock on its folder, which no other host or PID namespace can mistake.
    """
    for left in in_memory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if any(left.iterdir()):  # an empty one may be so new that it is not locked yet
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_PREFIX}{os.getpid()}-"
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=in_memory))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder; raises OSError if another process holds it, or the folder is another user's."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
