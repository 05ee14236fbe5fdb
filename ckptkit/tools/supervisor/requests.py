"""Hears the signals that are meant for the job, while this process waits.

Guarantees: every signal is told once, in order, and ends a wait at once; one that was ignored before still is. SIGTSTP
(Ctrl-Z) suspends the processes below this one and then this one, until SIGCONT; once the end was asked for, it does
nothing. `Requests.close` puts the earlier handlers back.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from datetime import timedelta
from types import FrameType

from ckptkit.tools.supervisor.processes import can_be_read, descendants, send

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)  # these ask for the end
HEARD = (*END_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)


class Requests:
    def __init__(self) -> None:
        self._ear, self._mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._came: list[int] = []
        self._former_fd = signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        self._spared = descendants(os.getpid())  # no part of the job, which begins later
        self._is_ending = self._continued = False
        handlers = {
            **dict.fromkeys(HEARD, self._note),
            signal.SIGTSTP: self._suspend,
            signal.SIGCONT: self._note_continued,
        }
        heard = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]  # as `nohup` wants it
        self._former = {number: signal.signal(number, handlers[number]) for number in heard}

    def take(self) -> list[int]:
        """Return the signals that came since the last call."""
        came, self._came = self._came, []
        return came

    def wait(self, timeout: timedelta, descriptors: Iterable[int] = ()) -> None:
        """Wait until a signal comes, a descriptor can be read or the time is over."""
        if self._came:
            return
        poller = select.poll()
        for descriptor in (self._ear, *descriptors):
            poller.register(descriptor, select.POLLIN)
        poller.poll(max(0.0, timeout.total_seconds() * 1000))
        while can_be_read(self._ear):
            os.read(self._ear, 4096)

    def close(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._ear)
        os.close(self._mouth)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
        self._is_ending = self._is_ending or number in END_SIGNALS

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        if self._is_ending:
            return  # the grace goes on, and a job that stood still would be killed before its last save
        self._continued = False
        job = descendants(os.getpid(), self._spared)
        send(job, signal.SIGSTOP)  # its sessions have no terminal, and SIGTSTP does nothing there
        if not self._continued:
            os.kill(os.getpid(), signal.SIGSTOP)  # returns after SIGCONT
        send(job, signal.SIGCONT)

    def _note_continued(self, number: int, frame: FrameType | None) -> None:
        self._continued = True
