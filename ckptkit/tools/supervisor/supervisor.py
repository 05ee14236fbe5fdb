"""Runs a command until it is done, must not be repeated, or has used up its lives.

Guarantees: no process of a life runs while there is none, between two lives and at the end. Every life is told in a
line or two, with the next move, and is stored as an event of the run if its root is known. A signal in a pause ends it.
What the last life had committed and not uploaded to the run's mirrors is uploaded at the end. Main thread only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from tenacity import RetryCallState, wait_exponential

from ckptkit.core.text import many
from ckptkit.core.worker import Latch, Worker
from ckptkit.format.events import LifeEnded
from ckptkit.manager.heartbeat.record import Record
from ckptkit.storage import Storage
from ckptkit.tools.copy.left_behind import LeftBehind
from ckptkit.tools.supervisor.budget import Budget, Decision
from ckptkit.tools.supervisor.diagnosis import diagnose
from ckptkit.tools.supervisor.heartbeat_folder import heartbeat_folder
from ckptkit.tools.supervisor.life import Life, LifeRunner
from ckptkit.tools.supervisor.life_log import LifeLog
from ckptkit.tools.supervisor.life_phases import leader_of
from ckptkit.tools.supervisor.options import Options
from ckptkit.tools.supervisor.processes import become_reaper
from ckptkit.tools.supervisor.requests import END_SIGNALS, Requests

_GLANCE = timedelta(seconds=0.1)


class Supervisor:
    """Runs the lives of one command.

    Args:
        command: Program and arguments.
        options: Limits.
        environment: The variables of the command.
        token: 32 random hexadecimal digits.
        open_root: Opens the root of a run, to store events there.
        say: Shows a line to the user.
        pass_on: Gets what the command writes to stderr.
        monotonic: Gives seconds; the clock that the ranks use.
        clock: Gives the time of day.
        on_look: Called twice a second with the records of the ranks.
        on_life: Called with each life that has ended, as it is stored.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Options,
        *,
        environment: Mapping[str, str],
        token: str,
        open_root: Callable[[str], Storage],
        say: Callable[[str], None],
        pass_on: Callable[[bytes], None],
        monotonic: Callable[[], float],
        clock: Callable[[], datetime],
        on_look: Callable[[Sequence[Record]], None] = lambda records: None,
        on_life: Callable[[LifeEnded], None] = lambda life: None,
    ) -> None:
        self._command = command
        self._options = options
        self._environment = environment
        self._say = say
        self._pass_on = pass_on
        self._monotonic = monotonic
        self._clock = clock
        self._on_look = on_look
        self._on_life = on_life
        self._budget = Budget(options.lives_without_progress)
        self._life_log = LifeLog(token, open_root, say)
        self._left_behind = LeftBehind(open_root, say)
        self._is_known = False

    def run(self) -> int:
        """Run the command to its end and return the exit code.

        Raises:
            CannotStartError: If the program cannot be started.
            OSError: If no folder can be made.
        """
        become_reaper()
        requests = Requests()
        try:
            return self._run(requests)
        finally:
            requests.close()

    def _run(self, requests: Requests) -> int:
        runner = LifeRunner(
            self._command,
            self._options,
            requests,
            self._environment,
            monotonic=self._monotonic,
            clock=self._clock,
            pass_on=self._pass_on,
            say=self._say,
            on_look=self._on_look,
        )
        number, down = 0, 0.0
        while True:
            number += 1
            with heartbeat_folder() as folder:
                life = runner.run(number, folder)
            decision = self._budget.judge(life, diagnose(life))
            self._tell(life, decision)
            leader = leader_of(life.records)
            if leader is not None and leader.rank <= 0 and leader.root:
                self._left_behind.note(leader.text("root"), leader.text("mirrors").splitlines())
            self._on_life(self._life_log.enter(life, decision, down))
            if decision.exit_code is not None:
                self._upload_left_behind(requests)
                return decision.exit_code
            asked = life.asked or self._pause(requests, decision)  # also what came while a hang was ended
            if asked is not None:
                self._say(f"{signal.Signals(asked).name} arrived: no other life begins")
                self._upload_left_behind(requests)
                return 128 + asked if asked == signal.SIGINT else 143
            down = self._monotonic() - life.ended

    def _upload_left_behind(self, requests: Requests) -> None:
        """Upload what the last life has left, in a thread of its own: a signal ends the wait for it."""
        ended = Latch()

        def upload() -> None:
            try:
                self._left_behind.upload()
            finally:
                ended.open()

        Worker(upload, "ckptkit-left-behind").start()
        while not ended.is_open:
            if any(one in END_SIGNALS for one in requests.take()):
                self._say("the upload is broken off; the next start completes it")
                return
            requests.wait(_GLANCE)

    def _pause(self, requests: Requests, decision: Decision) -> int | None:
        """Wait before the next life; return the signal that asks for the end, if one comes."""
        pause = pause_before(decision.in_a_row, self._options.longest_pause)
        self._say(f"the next life begins {f'in {pause.total_seconds():g} s' if pause else 'now'}")
        until = self._monotonic() + pause.total_seconds()
        while True:
            asked = [one for one in requests.take() if one in (*END_SIGNALS, signal.SIGUSR1)]
            if asked:
                return asked[0]
            left = until - self._monotonic()
            if left <= 0:
                return None
            requests.wait(timedelta(seconds=left))

    def _tell(self, life: Life, decision: Decision) -> None:
        finding = decision.finding
        lasted = timedelta(seconds=round(life.seconds))
        self._say(f"life {life.number} ended after {lasted}: {finding.cause}: {finding.why}")
        if life.left:
            who = ", ".join(map(str, life.left))
            self._say(f"these processes could not be killed: {who}; the kernel holds them, or they are another user's")
        if life.outlived and not life.records:
            self._say(
                f"the command ended while {many(life.outlived, 'process', 'processes')} of it still ran, which were "
                "ended too: what it starts has to end before it (msrun: --join=True)"
            )
        self._is_known = self._is_known or bool(life.records) or life.is_folder_removed
        if decision.exit_code is None and not self._is_known:
            self._say(
                "the command has shown no ckptkit callback or manager: only its exit code is known, and a restart may "
                "repeat everything"
            )
        if decision.exit_code is not None and decision.next_move != "done":
            self._say(f"no other life begins (exit code {decision.exit_code}): {decision.next_move}")


def pause_before(lives_without_progress: int, longest: timedelta) -> timedelta:
    """Return the pause before the next life: none after progress, else a second, and each time twice as long."""
    if lives_without_progress == 0:
        return timedelta(0)
    state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = lives_without_progress
    return timedelta(seconds=wait_exponential(multiplier=1, max=longest.total_seconds())(state))
