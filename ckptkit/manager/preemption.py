"""Watches for preemption requests (a signal, a file, a callable) and exits when the grace period ends.

Guarantees: a signal is noticed at once, whatever the main thread does, and is reported in one line as soon as Python
can run a thread. At the end of the grace, and at a second signal, the process exits with code 143 and one line that
names the newest checkpoint, unless training was settled before (with ``"return"``: only at a second signal). A signal
that came too late for training goes to the handler that was there before. This module does not save: see
`ckptkit.manager.run`. Training thread only, except `PreemptionRequest.heard` and where a docstring says so.

Python runs a signal handler only once the main thread is back in Python, and not while it is inside a framework's C++
code. Its C handler, however, writes the number of the signal to a file descriptor at once, and a thread here reads it.
A forked process inherits nothing of this, so that the end of a data worker is never taken for the end of training.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ckptkit.core.text import signal_name
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.manager.heartbeat import HEARTBEAT, Request
from ckptkit.manager.options import Preemption

_log = logging.getLogger("ckptkit")

EXIT_CODE = 143  # 128 + SIGTERM, as in a shell
_ONE_SIGNAL = timedelta(seconds=0.5)  # a launcher that forwards a signal of the process group delivers it twice
_LOOK_EVERY = timedelta(seconds=1)
_STDERR = 2
HEARD = (signal.SIGTERM, signal.SIGUSR1)
_FROM_PYTHON = 0x80  # marks numbers from the Python handler, in case other code took the descriptor
_STRUCT_BYTES = 1024  # more than any C library's struct sigaction
_LIBC = ctypes.CDLL(None, use_errno=True)


class PreviousHandler:
    """Saves what one signal does now, and restores it; main thread only.

    `signal.signal` restores only what was set through Python; `faulthandler.register` and the C++ code of frameworks
    bypass it. The C library's own structure is therefore kept as well, without being interpreted.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._handler = signal.getsignal(number)
        self.is_own = callable(self._handler)
        self._action = ctypes.create_string_buffer(_STRUCT_BYTES)
        self._sigaction(None, self._action)

    def restore(self) -> None:
        signal.signal(self._number, self._handler if self._handler is not None else signal.SIG_DFL)
        self._sigaction(self._action, None)

    def take(self, frame: FrameType | None) -> None:
        if callable(self._handler):
            self._handler(self._number, frame)
        else:
            self.restore()
            os.kill(os.getpid(), self._number)

    def _sigaction(self, new: ctypes.Array[ctypes.c_char] | None, old: ctypes.Array[ctypes.c_char] | None) -> None:
        if _LIBC.sigaction(self._number, new, old) != 0:
            raise OSError(ctypes.get_errno(), f"sigaction({self._number}) failed")


class SignalWatch:
    """Watches SIGTERM and SIGUSR1 of this process; the only instance is `SIGNALS`. Any thread, except `listen`.

    Listeners are held by weak references. Every signal reaches each listener, or, if no listener is left, the handler
    that was there before. When the last listener leaves, the earlier handlers come back, those set from C included, and
    so does the earlier descriptor; bytes for it are passed on meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[weakref.ref[PreemptionRequest]] = []
        self._former: dict[int, PreviousHandler] = {}
        self._pipe: _SignalPipe | None = None
        self._unseen_from_python: set[int] = set()
        self._masks = threading.local()
        self.pending = False
        after = {"after_in_parent": self._after_fork, "after_in_child": self._after_fork_in_child}
        os.register_at_fork(before=self._before_fork, **after)

    def listen(self, listener: PreemptionRequest) -> bool:
        """Deliver signals to ``listener`` from now on; outside the main thread do nothing and return False."""
        if threading.current_thread() is not threading.main_thread():
            return False
        with self._lock:  # an earlier signal may still be unread, if the last listener left in another thread
            acts = self._read()
            self._listeners = [weakref.ref(alive) for alive in (*self._alive(), listener)]
        for act in acts:
            act()
        if self._pipe is None:
            self._install()
        self._take()
        return True

    def attend(self) -> None:
        """Deliver signals that the thread has not read yet, if some are `pending`."""
        self.pending = False  # first: later signals set it again
        self._deliver()

    def leave(self, listener: PreemptionRequest) -> bool:
        """Deliver pending signals to ``listener``, then remove it; return whether no listener is left."""
        with self._lock:
            acts = self._read()
            self._listeners = [weakref.ref(alive) for alive in self._alive() if alive is not listener]
            # In between, the handler wrote to the pipe if it saw a listener; otherwise it called the former handler.
            acts += self._read(late=listener)
            alone, pipe = not self._listeners, self._pipe
        for act in acts:
            act()
        if alone and pipe is not None and threading.current_thread() is threading.main_thread():
            self._restore(pipe)
            with self._lock:  # a thread that still reads the pipe would take the last byte, and its own could not end
                pipe.over = True
            pipe.send(0)
        return alone

    def _alive(self) -> list[PreemptionRequest]:
        return [alive for reference in self._listeners if (alive := reference()) is not None]

    def _install(self) -> None:
        pipe = self._pipe = _SignalPipe()
        Worker(partial(self._watch, pipe), "ckptkit-signals").start()
        pipe.former = signal.set_wakeup_fd(pipe.writer.fileno(), warn_on_full_buffer=False)

    def _take(self) -> None:
        for number in HEARD:
            if signal.getsignal(number) == self._handle:
                if number in self._former:
                    continue
                # Other code kept our handler during an earlier training and installed it again afterwards.
                signal.signal(number, signal.SIG_DFL)
            self._former[number] = former = PreviousHandler(number)
            signal.signal(number, self._handle)
            signal.siginterrupt(number, False)  # do not interrupt system calls of a framework's threads
            if former.is_own:
                _log.warning(
                    "the handler of %s is replaced during training, because that signal asks ckptkit to save and to "
                    'end training (Preemption(then="off") keeps your handler)',
                    signal_name(number),
                )

    def _restore(self, pipe: _SignalPipe) -> None:
        for number, former in self._former.items():
            if signal.getsignal(number) == self._handle:  # otherwise other code has replaced it since
                former.restore()
        current = signal.set_wakeup_fd(-1)
        wanted = pipe.former if current == pipe.writer.fileno() else current
        with contextlib.suppress(ValueError, OSError):  # it may be closed by now
            signal.set_wakeup_fd(wanted)
        self._pipe = None
        self._former = {}
        self._unseen_from_python.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread; takes no lock, because that thread may hold it."""
        pipe, former = self._pipe, self._former.get(number)
        if pipe is not None and self._alive():
            pipe.send(number | _FROM_PYTHON)
            self.pending = True
        elif former is not None:
            former.take(frame)
        else:  # other code installed this handler again after the last training
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _watch(self, pipe: _SignalPipe) -> None:
        pipe.wait()
        while not pipe.over:
            self._deliver()
            pipe.wait()
        pipe.close()

    def _deliver(self) -> None:
        with self._lock:
            acts = self._read()
        for act in acts:
            act()

    def _read(self, *, late: PreemptionRequest | None = None) -> list[Callable[[], None]]:
        """Deliver pending signals, or to ``late`` only those that the handler took; the caller holds the lock.

        What is returned is to be called without the lock: it logs, which may block, and training must go on to its
        save meanwhile.
        """
        acts = []
        listeners = self._alive() if late is None else [late]
        for number in self._pipe.read() if self._pipe is not None else ():
            if not number & _FROM_PYTHON:
                if late is not None:
                    continue
                self._unseen_from_python.add(number)
            elif (number := number & ~_FROM_PYTHON) in self._unseen_from_python:
                self._unseen_from_python.discard(number)
                continue
            if number in self._former:
                acts += [listener.heard(number) for listener in listeners]
        return [act for act in acts if act is not None]

    def _before_fork(self) -> None:
        if self._pipe is not None:  # a child without its own handlers must not write into our pipe
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)

    def _after_fork(self) -> None:
        mask = getattr(self._masks, "before", None)
        if mask is not None:
            self._masks.before = None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # the lock's owner does not exist in this process
        self._listeners = []
        pipe = self._pipe
        if pipe is not None:
            self._restore(pipe)
            pipe.close()
        self._after_fork()


def name_of(number: int, stdin: int = 0) -> str:
    """Return the name of a signal; at a terminal, SIGTERM may be what MindSpore makes of Ctrl-C."""
    at_terminal = number == signal.SIGTERM and os.isatty(stdin)
    return "Ctrl-C or SIGTERM" if at_terminal else signal_name(number)


class _SignalPipe:
    """Connects the C handler, which writes, to the thread, which reads."""

    def __init__(self) -> None:
        self._reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)
        self.former = -1
        self.over = False

    def send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # full: there is enough to read
            self.writer.send(bytes([number]))

    def wait(self) -> None:
        self._reader.recv(1, socket.MSG_PEEK)

    def read(self) -> Iterator[int]:
        try:
            received = self._reader.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raw = bytes(number for number in received if number and not number & _FROM_PYTHON)
        if self.former != -1 and raw:
            with contextlib.suppress(OSError):
                os.write(self.former, raw)
        yield from (number for number in received if number)

    def close(self) -> None:
        self._reader.close()
        self.writer.close()


SIGNALS = SignalWatch()


class PreemptionRequest:
    def __init__(
        self,
        options: Preemption,
        *,
        newest: Callable[[], str | None],
        url: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self.exits = options.then == "exit"
        self._newest = newest
        self.url = url
        self._monotonic = monotonic
        self._lock = threading.RLock()  # in C: a Condition's own `with` may leave it taken after Ctrl-C
        self._changed = threading.Condition(self._lock)
        self._asked_at: float | None = None
        self._number: int | None = None
        self._heard_at: float | None = None
        self._settled = False
        self.is_asked = False  # by a request that is not settled
        self._look_at = -math.inf  # for the file
        self.why = self.dead_child = ""
        self._dead_before: set[int] = set()  # children that nobody waited for
        self.is_watched = False

    def seconds_left(self) -> float:
        """Return the rest of the grace; all of it while there is no request."""
        passed = 0.0 if self._asked_at is None else self._monotonic() - self._asked_at
        return max(0.0, self._options.grace.total_seconds() - passed)

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
            what = "also arrived; training ended before ckptkit acted on it"
            if not quietly:
                what = "arrived after training had ended and its last state was saved"
            _log.warning("%s %s", signal_name(self._number), what)
            if not quietly:
                os.kill(os.getpid(), self._number)

    def poll(self) -> bool:
        """Return whether training is to end; calls the callable, and looks for the file once a second."""
        if SIGNALS.pending:
            SIGNALS.attend()
        when = self._options.when
        if self._asked_at is None and when is not None and not self._settled:
            if callable(when):
                if when():
                    self.ask("Preemption(when=...) says so")
            elif (now := self._monotonic()) >= self._look_at:
                self._look_at = now + _LOOK_EVERY.total_seconds()
                if os.path.exists(when):
                    self.ask(f"the file {os.fspath(when)} is there (remove it before the next start)")
        return self.is_asked

    def heard(self, number: int) -> Callable[[], None] | None:
        """Handle a signal; the caller holds the lock of `SIGNALS`, and runs what is returned without it. Any thread."""
        name, now = name_of(number), self._monotonic()
        if self._heard_at is None:
            self._number, self._heard_at = number, now
            is_term = number == signal.SIGTERM
            dead = dead_children() if is_term else ()
            dead_child = next((how for pid, how in dead if pid not in self._dead_before), "")
            is_new = self._request(name, dead_child, "terminated" if is_term else "asked")
            return self._announce if is_new else None
        if timedelta(seconds=now - self._heard_at) < _ONE_SIGNAL:
            return None
        return lambda: self._die(f"{name} arrived again after {self.why}, so the process ends without waiting")

    def ask(self, why: str, dead_child: str = "") -> None:
        """Request the end, unless somebody has already; any thread."""
        if self._request(why, dead_child, "asked"):
            self._announce()

    def _request(self, why: str, dead_child: str, request: Request) -> bool:
        with self._lock:
            if self._asked_at is not None or self._settled:
                return False
            self.why = f"{why} after {dead_child}" if dead_child else why
            self.dead_child = dead_child
            self._asked_at = self._monotonic()
            self.is_asked = True  # last: the training thread looks at it without the lock
            HEARTBEAT.request("child-died" if dead_child else request, self.why)
            return True

    def _announce(self) -> None:
        if self.exits:
            try:
                Worker(self._enforce, "ckptkit-grace").start()
            except NoThreadError as error:
                _log.warning(
                    "could not start the grace-period timer; only the scheduler will stop this process: %s", error
                )
        _log.warning("%s: saving within %g s and ending", self.why, self._options.grace.total_seconds())

    def settle(self) -> None:
        """Mark the request as settled; the end of the grace no longer ends the process."""
        with self._lock:
            self._settled = True
            self.is_asked = False
            self._changed.notify_all()

    def account(self) -> str:
        newest = self._newest()
        if newest is None:
            return f"There is no checkpoint at {self.url} yet: the same command begins afresh"
        return f"The newest checkpoint is {newest} at {self.url}: the same command continues from it"

    def _enforce(self) -> None:
        with self._lock:
            while not self._settled and self.seconds_left() > 0:
                self._changed.wait(self.seconds_left())
            if self._settled:
                return
        within = f"within {self._options.grace.total_seconds():g} s"
        self._die(f"{self.why}: the last save, or what follows it such as an upload, did not end {within}")

    def _die(self, what: str) -> NoReturn:
        """End the process now, without flushing buffers or taking locks that the training thread may hold."""
        try:
            line = f"[ckptkit] {what}. {self.account()}.\n".encode(errors="backslashreplace")
            if select.select([], [_STDERR], [], 0)[1]:  # a pipe that nobody reads must not block the exit
                os.write(_STDERR, line)
        finally:  # also if stderr is closed or its other end is gone
            os._exit(EXIT_CODE)


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
