"""Delivers SIGTERM and SIGUSR1 to listeners, even while the main thread is inside a framework's C++ code.

Python runs a signal handler only once the main thread is back in Python. Its C handler, however, writes the number of
the signal to a file descriptor at once, and a thread here reads it. Guarantees: every signal reaches each listener, or,
if no listener is left, the handler that was there before. When the last listener leaves, the earlier handlers come
back, those set from C included, and so does the earlier descriptor; bytes for it are passed on meanwhile. A forked
process inherits nothing of this, so that the end of a data worker is never taken for the end of training.
`SignalWatch.listen` works in the main thread only. Any thread may call the rest.

`PreviousHandler` saves and restores what a signal does, including handlers set from C. `signal.signal` restores only
what was set through Python; `faulthandler.register` and the C++ code of frameworks bypass it. The C library's own
structure is therefore kept as well, without being interpreted. Guarantees: after `PreviousHandler.restore` the signal
does what it did when the object was made. Main thread only.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Protocol

from ckptkit.core.worker import Worker

_log = logging.getLogger("ckptkit")

HEARD = (signal.SIGTERM, signal.SIGUSR1)
_FROM_PYTHON = 0x80  # marks numbers from the Python handler, in case other code took the descriptor
_STRUCT_BYTES = 1024  # more than any C library's struct sigaction
_LIBC = ctypes.CDLL(None, use_errno=True)


class PreviousHandler:
    """Saves what one signal does now."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._handler = signal.getsignal(number)
        self._action = ctypes.create_string_buffer(_STRUCT_BYTES)
        self._sigaction(None, self._action)

    @property
    def is_own(self) -> bool:
        return callable(self._handler)

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


class Listener(Protocol):
    """Receives signals; held by a weak reference."""

    def heard(self, number: int) -> Callable[[], None] | None: ...


class SignalWatch:
    """Watches the signals of this process; the only instance is `SIGNALS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[weakref.ref[Listener]] = []
        self._former: dict[int, PreviousHandler] = {}
        self._line: _Line | None = None
        self._unseen_from_python: set[int] = set()
        self._masks = threading.local()
        self._follows_forks = False
        self._pending = False

    def listen(self, listener: Listener) -> bool:
        """Deliver signals to ``listener`` from now on; outside the main thread do nothing and return False."""
        if threading.current_thread() is not threading.main_thread():
            return False
        with self._lock:  # an earlier signal may still be unread, if the last listener left in another thread
            acts = self._read()
            self._listeners = [*self._alive(), weakref.ref(listener)]
        for act in acts:
            act()
        if self._line is None:
            self._install()
        self._take()
        return True

    def attend(self) -> None:
        """Deliver signals that the thread has not read yet; free of cost without a signal."""
        if not self._pending:
            return
        self._pending = False  # first: later signals set it again
        with self._lock:
            acts = self._read()
        for act in acts:
            act()

    def leave(self, listener: Listener) -> bool:
        """Deliver pending signals to ``listener``, then remove it; return whether no listener is left."""
        with self._lock:
            acts = self._read()
            self._listeners = [reference for reference in self._alive() if reference() is not listener]
            # In between, the handler wrote to the line if it saw a listener; otherwise it called the former handler.
            acts += self._read(late=listener)
            alone, line = not self._listeners, self._line
        for act in acts:
            act()
        if alone and line is not None and threading.current_thread() is threading.main_thread():
            self._restore(line)
            with self._lock:
                line.over = True
            line.tell(0)
        return alone

    def _alive(self) -> list[weakref.ref[Listener]]:
        return [reference for reference in self._listeners if reference() is not None]

    def _install(self) -> None:
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
            )
        line = self._line = _Line()
        Worker(partial(self._watch, line), "ckptkit-signals").start()
        line.former = signal.set_wakeup_fd(line.mouth.fileno(), warn_on_full_buffer=False)

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
                    signal.Signals(number).name,
                )

    def _restore(self, line: _Line) -> None:
        for number, former in self._former.items():
            if signal.getsignal(number) == self._handle:  # otherwise other code has replaced it since
                former.restore()
        current = signal.set_wakeup_fd(-1)
        wanted = line.former if current == line.mouth.fileno() else current
        with contextlib.suppress(ValueError, OSError):  # it may be closed by now
            signal.set_wakeup_fd(wanted)
        self._line = None
        self._former = {}
        self._unseen_from_python.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread; takes no lock, because that thread may hold it."""
        line, former = self._line, self._former.get(number)
        if line is not None and self._alive():
            line.tell(number | _FROM_PYTHON)
            self._pending = True
        elif former is not None:
            former.take(frame)
        else:  # other code installed this handler again after the last training
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _watch(self, line: _Line) -> None:
        while True:
            line.wait()
            with self._lock:
                if line.over:
                    line.close()
                    return
                acts = self._read()
            for act in acts:
                act()

    def _read(self, *, late: Listener | None = None) -> list[Callable[[], None]]:
        """Deliver pending signals, or to ``late`` only those that the handler took; the caller holds the lock."""
        acts = []
        for number in self._line.read() if self._line is not None else ():
            if not number & _FROM_PYTHON:
                if late is None:
                    self._unseen_from_python.add(number)
                    acts += self._tell(number, [reference() for reference in self._listeners])
            elif (number := number & ~_FROM_PYTHON) in self._unseen_from_python:
                self._unseen_from_python.discard(number)
            else:
                acts += self._tell(number, [reference() for reference in self._listeners] if late is None else [late])
        return acts

    def _tell(self, number: int, listeners: Sequence[Listener | None]) -> list[Callable[[], None]]:
        if number not in self._former:
            return []
        return [act for listener in listeners if listener is not None and (act := listener.heard(number)) is not None]

    def _before_fork(self) -> None:
        if self._line is not None:  # a child without its own handlers must not write into our pipe
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)

    def _after_fork(self) -> None:
        mask = getattr(self._masks, "before", None)
        if mask is not None:
            self._masks.before = None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # the lock's owner does not exist in this process
        self._listeners = []
        line = self._line
        if line is not None:
            self._restore(line)
            line.close()
        self._after_fork()


def name_of(number: int, stdin: int = 0) -> str:
    """Return the name of a signal, for people; at a terminal, SIGTERM may be what MindSpore makes of Ctrl-C."""
    at_terminal = number == signal.SIGTERM and os.isatty(stdin)
    return signal.Signals(number).name + (" (which MindSpore also sends after Ctrl-C)" if at_terminal else "")


class _Line:
    """Connects the C handler, which writes, to the thread, which reads."""

    def __init__(self) -> None:
        self._ear, self.mouth = socket.socketpair()
        self.mouth.setblocking(False)
        self.former = -1
        self.over = False

    def tell(self, number: int) -> None:
        with contextlib.suppress(OSError):  # full: there is enough to read
            self.mouth.send(bytes([number]))

    def wait(self) -> None:
        self._ear.recv(1, socket.MSG_PEEK)

    def read(self) -> Iterator[int]:
        try:
            received = self._ear.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raw = bytes(number for number in received if number and not number & _FROM_PYTHON)
        if self.former != -1 and raw:
            with contextlib.suppress(OSError):
                os.write(self.former, raw)
        yield from (number for number in received if number)

    def close(self) -> None:
        self._ear.close()
        self.mouth.close()


SIGNALS = SignalWatch()
