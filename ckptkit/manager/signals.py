"""Hears SIGTERM and SIGUSR1 for whoever listens, also while the main thread is inside of a framework's C++.

Python runs a handler only once the main thread is back in Python; its C handler, though, writes the number of the
signal to a file descriptor at once, and a thread here reads that. Guarantees: every signal reaches each listener, or,
where none is left, whoever had it before; handlers and the descriptor that were there before come back when the last
listener goes, those set from C included, and bytes for the former descriptor are passed on; a process that is forked
off inherits nothing of it, so that the end of a data worker is never taken for the end of the training.
`SignalWatch.listen` hears nothing but in the main thread. Any thread.

What a process does at a signal, kept and put back, also where that was set from C. `signal.signal` puts back only what
was set through Python: `faulthandler.register` and the C++ of frameworks set their handlers past it. So the C
library's own structure is kept beside it, unread. Guarantees: after `PreviousHandler.restore` the signal does what it
did when the object was made. Main thread only.
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
from types import FrameType
from typing import Protocol

_log = logging.getLogger("ckptkit")

HEARD = (signal.SIGTERM, signal.SIGUSR1)
_FROM_PYTHON = 0x80  # added to a number that the Python handler writes, in case somebody took the descriptor
_STRUCT_BYTES = 1024  # more than any C library's struct sigaction
_LIBC = ctypes.CDLL(None, use_errno=True)


class Listener(Protocol):
    """Wants to hear signals; held weakly."""

    def heard(self, number: int) -> Callable[[], None] | None:
        """Take notice at once, under a lock; what takes longer is returned and called after it."""
        ...


class SignalWatch:
    """The signals of this process; there is one, `SIGNALS`."""

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
        """Tell ``listener`` of signals from now on; False, and nothing, where this is not the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return False
        with self._lock:  # a signal from before may still lie there, if the last listener left in another thread
            acts = self._read()
            self._listeners = [*self._alive(), weakref.ref(listener)]
        for act in acts:
            act()
        if self._line is None:
            self._install()
        self._take()
        return True

    def attend(self) -> None:
        """Tell the listeners what has arrived, if the thread has not come to it yet; costs nothing without a signal."""
        if not self._pending:
            return
        self._pending = False  # first: what comes from here on sets it again
        with self._lock:
            acts = self._read()
        for act in acts:
            act()

    def leave(self, listener: Listener) -> bool:
        """Tell ``listener`` what has arrived, and then nothing more; returns whether nobody listens any more."""
        with self._lock:
            acts = self._read()
            self._listeners = [one for one in self._alive() if one() is not listener]
            # What came in between: the handler gave it either to the listeners, and then said so, or to the former one.
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
        return [one for one in self._listeners if one() is not None]

    def _install(self) -> None:
        if not self._follows_forks:
            self._follows_forks = True
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._after_fork_in_child
            )
        line = self._line = _Line()
        threading.Thread(target=self._watch, args=(line,), name="ckptkit-signals", daemon=True).start()
        line.former = signal.set_wakeup_fd(line.mouth.fileno(), warn_on_full_buffer=False)

    def _take(self) -> None:
        for number in HEARD:
            if signal.getsignal(number) == self._handle:
                if number in self._former:
                    continue
                # Somebody kept our handler during an earlier training and has put it back after that.
                signal.signal(number, signal.SIG_DFL)
            self._former[number] = former = PreviousHandler(number)
            signal.signal(number, self._handle)
            signal.siginterrupt(number, False)  # a system call of a framework's thread is not broken off
            if former.is_own:
                _log.warning(
                    "the handler of %s is set aside while training, since that signal asks for a save and the end "
                    '(on_preempt="off" leaves it alone)',
                    signal.Signals(number).name,
                )

    def _restore(self, line: _Line) -> None:
        for number, former in self._former.items():
            if signal.getsignal(number) == self._handle:  # else somebody has taken it since
                former.restore()
        current = signal.set_wakeup_fd(-1)
        wanted = line.former if current == line.mouth.fileno() else current
        with contextlib.suppress(ValueError, OSError):  # it may have been closed meanwhile
            signal.set_wakeup_fd(wanted)
        self._line = None
        self._former = {}
        self._unseen_from_python.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, when it is back in Python; takes no lock, which that thread may hold just now."""
        line, former = self._line, self._former.get(number)
        if line is not None and self._alive():
            line.tell(number | _FROM_PYTHON)
            self._pending = True
        elif former is not None:
            former.take(frame)
        else:  # put back by somebody after the last training
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
        """Tell the listeners what has arrived, or only ``late`` what the handler took for it; with the lock."""
        acts = []
        for number in self._line.read() if self._line is not None else ():
            if not number & _FROM_PYTHON:
                if late is None:
                    self._unseen_from_python.add(number)
                    acts += self._tell(number, [one() for one in self._listeners])
            elif (number := number & ~_FROM_PYTHON) in self._unseen_from_python:
                self._unseen_from_python.discard(number)
            else:
                acts += self._tell(number, [one() for one in self._listeners] if late is None else [late])
        return acts

    def _tell(self, number: int, listeners: Sequence[Listener | None]) -> list[Callable[[], None]]:
        if number not in self._former:
            return []
        return [act for one in listeners if one is not None and (act := one.heard(number)) is not None]

    def _before_fork(self) -> None:
        if self._line is not None:  # until the child has handlers of its own, it must not write into our pipe
            self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)

    def _after_fork(self) -> None:
        mask = getattr(self._masks, "before", None)
        if mask is not None:
            self._masks.before = None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()  # its owner is not in this process
        self._listeners = []
        line = self._line
        if line is not None:
            self._restore(line)
            line.close()
        self._after_fork()


class _Line:
    """What the C handler writes into and the thread reads from."""

    def __init__(self) -> None:
        self._ear, self.mouth = socket.socketpair()
        self.mouth.setblocking(False)
        self.former = -1
        self.over = False

    def tell(self, number: int) -> None:
        with contextlib.suppress(OSError):  # full: then there is enough to read
            self.mouth.send(bytes([number]))

    def wait(self) -> None:
        self._ear.recv(1, socket.MSG_PEEK)

    def read(self) -> Iterator[int]:
        try:
            found = self._ear.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        raw = bytes(one for one in found if one and not one & _FROM_PYTHON)
        if self.former != -1 and raw:
            with contextlib.suppress(OSError):
                os.write(self.former, raw)
        yield from (one for one in found if one)

    def close(self) -> None:
        self._ear.close()
        self.mouth.close()


SIGNALS = SignalWatch()


class PreviousHandler:
    """Of one signal, as it is now.

    Args:
        number: Of the signal.

    Raises:
        OSError: If there is no such signal.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._handler = signal.getsignal(number)
        self._action = ctypes.create_string_buffer(_STRUCT_BYTES)
        self._sigaction(None, self._action)

    @property
    def is_own(self) -> bool:
        """Whether the program has set a handler of its own in Python."""
        return callable(self._handler)

    def restore(self) -> None:
        """Put it back."""
        signal.signal(self._number, self._handler if self._handler is not None else signal.SIG_DFL)
        self._sigaction(self._action, None)

    def take(self, frame: FrameType | None) -> None:
        """Let it have a signal that came to nobody else."""
        if callable(self._handler):
            self._handler(self._number, frame)
        else:
            self.restore()
            os.kill(os.getpid(), self._number)

    def _sigaction(self, new: ctypes.Array[ctypes.c_char] | None, old: ctypes.Array[ctypes.c_char] | None) -> None:
        if _LIBC.sigaction(self._number, new, old) != 0:
            raise OSError(ctypes.get_errno(), f"sigaction({self._number}) failed")
