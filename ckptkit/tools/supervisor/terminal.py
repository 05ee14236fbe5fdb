"""Writes to stderr what the job writes there, and what the supervisor says of it.

Guarantees: a stderr that is closed, full, or read by nobody any more stops neither the job nor its supervisor. A slow
reader slows the job down; one that reads nothing for `_PATIENCE_SECONDS` misses what does not fit into `_MOST_BYTES`,
and is told so when it reads again. What the supervisor says begins on a line of its own. Any thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

from ckptkit.core.text import size
from ckptkit.core.worker import Worker

_STDERR = 2
_STANDARD = 3  # descriptors: stdin, stdout, stderr
_MOST_BYTES = 1 << 20  # held of what the job writes; the supervisor's own lines may fill as much again
_PATIENCE_SECONDS = 2.0
_AT_ONCE_BYTES = select.PIPE_BUF  # a pipe that can be written takes so many


class Terminal:
    """Writes to stderr, in a thread of its own: a write may block for ever."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # in C: a Condition's own `with` may leave it taken after Ctrl-C
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[bytes] = deque()  # the first of them is being written
        self._waiting_bytes = self._missing_bytes = 0
        self._is_within_line = self._is_stuck = False
        Worker(self._write_all, "ckptkit-terminal").start()

    def pass_on(self, data: bytes) -> None:
        """Write what the job has written."""
        with self._lock:
            seconds = 0 if self._is_stuck else _PATIENCE_SECONDS
            self._is_stuck = not self._changed.wait_for(lambda: self._waiting_bytes < _MOST_BYTES, seconds)
            self._put(data, _MOST_BYTES)

    def say(self, line: str) -> None:
        """Write a line of the supervisor's."""
        with self._lock:
            start = "\n" if self._is_within_line else ""
            self._put(f"{start}[ckptkit run] {line.rstrip()}\n".encode(errors="backslashreplace"), 2 * _MOST_BYTES)

    write = say  # for a log, which takes this for a stream

    def close(self) -> None:
        """Wait a moment for what is not written yet; nothing may follow."""
        with self._lock:
            self._changed.wait_for(lambda: not self._waiting, 0 if self._is_stuck else _PATIENCE_SECONDS)
            self._waiting.append(b"")  # ends the thread
            self._changed.notify_all()

    def _put(self, data: bytes, most_bytes: int) -> None:
        """Let ``data`` be written if there is room for it."""
        if self._waiting_bytes >= most_bytes:
            self._missing_bytes += len(data)
            return
        if self._missing_bytes:
            missing, self._missing_bytes = self._missing_bytes, 0
            self.say(f"{size(missing)} of stderr are missing here, because nobody read them in time")
        self._is_within_line = not data.endswith(b"\n")
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._changed.notify_all()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            if not data:
                return
            with contextlib.suppress(OSError):  # closed, or its disk is full
                rest = data
                while rest:
                    select.select([], [_STDERR], [])  # also where somebody has made writes return at once
                    rest = rest[os.write(_STDERR, rest[:_AT_ONCE_BYTES]) :]
            with self._lock:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                self._is_stuck = False
                self._changed.notify_all()


def open_standard_descriptors() -> None:
    """Open what is closed of stdin, stdout and stderr, or else the next pipe would get its number."""
    for number in range(_STANDARD):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
