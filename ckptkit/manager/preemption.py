"""What asks a training to end: a signal, a file, a callable; and the end of the grace, which nothing outlives.

Guarantees: a signal is noticed at once, whatever the main thread does, and said in one line as soon as Python can run a
thread; at the end of the grace, and at a second signal, the process ends with code 143 and one line that names the
newest checkpoint, unless the training was settled before (``"return"``: only at a second signal). A signal that came
too late for the training goes to whoever had it before. Saving is not done here: see `ckptkit.manager.final_save`.
Training thread only, but for `Preemption.heard`.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from ckptkit.core.options import OnPreempt, PreemptWhen
from ckptkit.manager.signals import SIGNALS

_log = logging.getLogger("ckptkit")

EXIT_CODE = 143  # 128 + SIGTERM, as a shell says it
_ONE_SIGNAL = timedelta(seconds=0.5)  # a launcher that forwards what the whole process group got makes two of one
_LOOK_EVERY = timedelta(seconds=1)
_STDERR = 2


class Preemption:
    """Of one training.

    Args:
        grace: From the first sign to the end.
        on_preempt: What happens then: ``"exit"`` or ``"return"``; with ``"off"`` nothing ever asks.
        when: A file that asks by being there, or a callable.
        newest: Says which checkpoint is the newest, for the last line; without touching a storage, in any thread.
        url: Where it is.
        monotonic: Gives seconds.

    Attributes:
        url: Where the run is.
        why: Who asked, for people; empty until somebody did.
        is_watched: Between `begin` and `end`.
    """

    def __init__(
        self,
        grace: timedelta,
        on_preempt: OnPreempt,
        when: PreemptWhen,
        *,
        newest: Callable[[], str | None],
        url: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grace = grace
        self._on_preempt = on_preempt
        self._when = when
        self._newest = newest
        self.url = url
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._asked_at: float | None = None
        self._number: int | None = None
        self._heard_at: float | None = None
        self._newest_before: str | None = None
        self._settled = False
        self._looked_at: float | None = None
        self.why = ""
        self.is_watched = False

    @property
    def exits(self) -> bool:
        """Whether the process is to end, rather than training alone."""
        return self._on_preempt == "exit"

    @property
    def is_asked(self) -> bool:
        """Whether anybody has asked, and it is not settled yet."""
        return self._asked_at is not None and not self._settled

    @property
    def left(self) -> timedelta:
        """Of the grace; all of it while nobody has asked."""
        if self._asked_at is None:
            return self._grace
        return max(timedelta(0), self._grace - timedelta(seconds=self._monotonic() - self._asked_at))

    def begin(self) -> None:
        """Watch from now on, the signals only if this is the main thread."""
        if self.is_watched or self._on_preempt == "off":
            return
        self.is_watched = True
        if not SIGNALS.listen(self):
            _log.info("training is not in the main thread, where signals arrive: SIGTERM ends it without a save")

    def end(self, *, quietly: bool = False) -> None:
        """Watch no more; a signal that nobody has acted on goes to whoever had it before.

        Args:
            quietly: Say that there was one and go on, because something worse is on its way.
        """
        if not self.is_watched:
            return
        alone = SIGNALS.leave(self)
        self.is_watched = False
        unmet = self.is_asked
        self.settle()
        if unmet and self._number is not None and alone:
            name = signal.Signals(self._number).name
            if quietly:
                _log.warning("%s came as well; training has ended before it was acted on", name)
            else:
                _log.warning("%s came when training had ended and its last state was saved", name)
                os.kill(os.getpid(), self._number)

    def poll(self) -> bool:
        """Whether the training is to end; asks the callable, and looks for the file once a second."""
        SIGNALS.attend()
        if self._asked_at is None and self._when is not None and not self._settled:
            if callable(self._when):
                if self._when():
                    self.ask("preempt_when= says so")
            elif self._is_there(os.fspath(self._when)):
                self.ask(f"the file {os.fspath(self._when)} is there (remove it before the next start)")
        return self.is_asked

    def ask(self, why: str) -> None:
        """The training is to end; the grace begins now unless it has begun before."""
        with self._changed:
            act = self._ask(why)
        if act is not None:
            act()

    def heard(self, number: int) -> Callable[[], None] | None:
        """As `ckptkit.manager.signals.Listener`."""
        name = signal.Signals(number).name
        now = self._monotonic()
        with self._changed:
            if self._heard_at is None:
                self._number, self._heard_at = number, now
                return self._ask(name)
            if timedelta(seconds=now - self._heard_at) < _ONE_SIGNAL:
                return None
            return lambda: self._die(f"{name} came again after {self.why}, so nothing is waited for")

    def settle(self) -> None:
        """The end of the grace has no meaning any more."""
        with self._changed:
            self._settled = True
            self._changed.notify_all()

    def recall(self) -> None:
        """What is the newest now was there before anybody asked: a rank that does not commit may learn of it late."""
        with self._changed:
            self._newest_before = self._newest()
            self._changed.notify_all()

    def account(self) -> str:
        """Which checkpoint is the newest, and how to go on."""
        newest = self._newest()
        if newest is None:
            return f"There is no checkpoint at {self.url} yet: the same command begins afresh"
        return f"The newest checkpoint is {newest} at {self.url}: the same command goes on from it"

    def _ask(self, why: str) -> Callable[[], None] | None:
        if self._asked_at is not None or self._settled:
            return None
        self._asked_at = self._monotonic()
        self._newest_before = self._newest()
        self.why = why
        return self._announce

    def _announce(self) -> None:
        if self.exits:
            try:
                threading.Thread(target=self._enforce, name="ckptkit-grace", daemon=True).start()
            except RuntimeError as error:  # the process may have no more threads
                _log.warning("nothing but the scheduler ends this process after the grace: %s", error)
        _log.warning("%s: saving within %g s and ending", self.why, self._grace.total_seconds())

    def _enforce(self) -> None:
        with self._changed:
            while not self._settled:
                left = self.left.total_seconds()
                if left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
        within = f"within {self._grace.total_seconds():g} s"
        newest = self._newest()
        if newest == self._newest_before:
            self._die(f"{self.why}: nothing was saved {within}")
        self._die(
            f"{self.why}: saved {newest}, but what follows a commit, such as the upload to a mirror, or a later "
            f"save did not end {within}"
        )

    def _die(self, what: str) -> NoReturn:
        """End the process now; past every buffer and lock, which the training thread may hold."""
        try:
            line = f"[ckptkit] {what}. {self.account()}.\n".encode(errors="backslashreplace")
            if select.select([], [_STDERR], [], 0)[1]:  # a pipe that nobody reads must not keep it
                os.write(_STDERR, line)
        finally:  # also where stderr is closed, or nobody is left at the other end of it
            os._exit(EXIT_CODE)

    def _is_there(self, path: str) -> bool:
        now = self._monotonic()
        if self._looked_at is not None and now - self._looked_at < _LOOK_EVERY.total_seconds():
            return False
        self._looked_at = now
        return os.path.exists(path)
