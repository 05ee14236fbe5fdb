"""Watches for preemption requests (a signal, a file, a callable) and exits when the grace period ends.

Guarantees: a signal is noticed at once, whatever the main thread does, and is reported in one line as soon as Python
can run a thread. At the end of the grace, and at a second signal, the process exits with code 143 and one line that
names the newest checkpoint, unless training was settled before (with ``"return"``: only at a second signal). A signal
that came too late for training goes to the handler that was there before. This module does not save: see
`ckptkit.manager.final_save`. Training thread only, except `Preemption.heard`.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.manager.heartbeat.writer import HEARTBEAT, Request
from ckptkit.manager.options import Preemption
from ckptkit.manager.signals import SIGNALS, name_of

_log = logging.getLogger("ckptkit")

EXIT_CODE = 143  # 128 + SIGTERM, as in a shell
_ONE_SIGNAL = timedelta(seconds=0.5)  # a launcher that forwards a signal of the process group delivers it twice
_LOOK_EVERY = timedelta(seconds=1)
_STDERR = 2


class PreemptionRequest:
    """Tracks the preemption request of one training."""

    def __init__(
        self,
        options: Preemption,
        *,
        newest: Callable[[], str | None],
        url: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._newest = newest
        self.url = url
        self._monotonic = monotonic
        self._lock = threading.RLock()  # in C: a Condition's own `with` may leave it taken after Ctrl-C
        self._changed = threading.Condition(self._lock)
        self._asked_at: float | None = None
        self._number: int | None = None
        self._heard_at: float | None = None
        self._newest_before: str | None = None
        self._settled = False
        self._looked_at: float | None = None
        self.why = self.dead_child = ""
        self._dead_before: set[int] = set()  # children that nobody waited for
        self.is_watched = False

    @property
    def exits(self) -> bool:
        return self._options.then == "exit"

    @property
    def is_asked(self) -> bool:
        return self._asked_at is not None and not self._settled

    @property
    def left(self) -> timedelta:
        """Rest of the grace; all of it while there is no request."""
        if self._asked_at is None:
            return self._options.grace
        return max(timedelta(0), self._options.grace - timedelta(seconds=self._monotonic() - self._asked_at))

    def begin(self) -> None:
        if self.is_watched or self._options.then == "off":
            return
        self.is_watched = True
        self._dead_before = {pid for pid, _ in dead_children()}
        if not SIGNALS.listen(self):
            _log.info("training is not in the main thread, where signals arrive: SIGTERM ends it without a save")

    def end(self, *, quietly: bool = False) -> None:
        """Stop watching; a signal that was not acted on goes to the handler that was there before."""
        if not self.is_watched:
            return
        alone = SIGNALS.leave(self)
        self.is_watched = False
        unmet = self.is_asked
        self.settle()
        if unmet and self._number is not None and alone:
            name = signal.Signals(self._number).name
            if quietly:
                _log.warning("%s also arrived; training ended before ckptkit acted on it", name)
            else:
                _log.warning("%s arrived after training had ended and its last state was saved", name)
                os.kill(os.getpid(), self._number)

    def poll(self) -> bool:
        """Return whether training is to end; calls the callable, and looks for the file once a second."""
        SIGNALS.attend()
        if self._asked_at is None and self._options.when is not None and not self._settled:
            if callable(self._options.when):
                if self._options.when():
                    self.ask("Preemption(when=...) says so")
            elif self._is_there(os.fspath(self._options.when)):
                self.ask(f"the file {os.fspath(self._options.when)} is there (remove it before the next start)")
        return self.is_asked

    def ask(self, why: str, dead_child: str = "") -> None:
        with self._lock:
            act = self._ask(why, "child-died" if dead_child else "asked", dead_child)
        if act is not None:
            act()

    def heard(self, number: int) -> Callable[[], None] | None:
        """Handle a signal; the caller holds the lock of `SIGNALS`, and runs what is returned without it."""
        name = name_of(number)
        now = self._monotonic()
        with self._lock:
            if self._heard_at is None:
                self._number, self._heard_at = number, now
                if number != signal.SIGTERM:
                    return self._ask(name, "asked")
                dead_child = next((how for pid, how in dead_children() if pid not in self._dead_before), "")
                return self._ask(name, "child-died" if dead_child else "terminated", dead_child)
            if timedelta(seconds=now - self._heard_at) < _ONE_SIGNAL:
                return None
            return lambda: self._die(f"{name} arrived again after {self.why}, so the process ends without waiting")

    def settle(self) -> None:
        """Mark the request as settled; the end of the grace no longer ends the process."""
        with self._lock:
            self._settled = True
            self._changed.notify_all()

    def recall(self) -> None:
        with self._lock:
            self._newest_before = self._newest()
            self._changed.notify_all()

    def account(self) -> str:
        newest = self._newest()
        if newest is None:
            return f"There is no checkpoint at {self.url} yet: the same command begins afresh"
        return f"The newest checkpoint is {newest} at {self.url}: the same command continues from it"

    def _ask(self, why: str, request: Request, dead_child: str = "") -> Callable[[], None] | None:
        if self._asked_at is not None or self._settled:
            return None
        self.why = f"{why} after {dead_child}" if dead_child else why
        self.dead_child = dead_child
        self._newest_before = self._newest()
        self._asked_at = self._monotonic()  # last: the training thread looks at it without the lock
        HEARTBEAT.request(request, self.why)
        return self._announce

    def _announce(self) -> None:
        if self.exits:
            try:
                Worker(self._enforce, "ckptkit-grace").start()
            except NoThreadError as error:
                _log.warning(
                    "could not start the grace-period timer; only the scheduler will stop this process: %s", error
                )
        _log.warning("%s: saving within %g s and ending", self.why, self._options.grace.total_seconds())

    def _enforce(self) -> None:
        with self._lock:
            while not self._settled:
                left = self.left.total_seconds()
                if left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
        within = f"within {self._options.grace.total_seconds():g} s"
        newest = self._newest()
        if newest == self._newest_before:
            self._die(f"{self.why}: nothing was saved {within}")
        self._die(
            f"{self.why}: saved {newest}, but the work after a commit, such as the upload to a mirror, or a later "
            f"save did not end {within}"
        )

    def _die(self, what: str) -> NoReturn:
        """End the process now, without flushing buffers or taking locks that the training thread may hold."""
        try:
            line = f"[ckptkit] {what}. {self.account()}.\n".encode(errors="backslashreplace")
            if select.select([], [_STDERR], [], 0)[1]:  # a pipe that nobody reads must not block the exit
                os.write(_STDERR, line)
        finally:  # also if stderr is closed or its other end is gone
            os._exit(EXIT_CODE)

    def _is_there(self, path: str) -> bool:
        now = self._monotonic()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY.total_seconds():
            return False
        self._looked_at = now
        return os.path.exists(path)


def dead_children() -> Iterator[tuple[int, str]]:
    """Yield the children of this process that have died and that nobody has waited for, each with how, for people.

    MindSpore answers the death of a data worker with SIGTERM to its own process. A child that SIGTERM has ended
    does not count: the whole process group may have got it.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ended = os.waitid(os.P_PID, int(folder.name), os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else's
            continue
        if ended is None or ended.si_status in (0, signal.SIGTERM):
            continue
        child = f"child process {folder.name}, probably a data worker,"
        if ended.si_code == os.CLD_EXITED:
            yield ended.si_pid, f"{child} ended with exit code {ended.si_status}"
            continue
        by = next((member.name for member in signal.Signals if member == ended.si_status), f"signal {ended.si_status}")
        yield ended.si_pid, f"{child} was killed by {by}{', probably by the OOM killer' * (by == 'SIGKILL')}"
