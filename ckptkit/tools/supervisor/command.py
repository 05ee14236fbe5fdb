"""Starts the command of a life in a session of its own, and passes on what it writes to stderr.

Guarantees: what the command writes is passed on unchanged and at once, and the end of it is kept. A stderr of our own
that is closed, full, or read by nobody any more stops neither the job nor its supervisor: a slow reader slows the job
down; one that reads nothing for `_PATIENCE_SECONDS` misses what does not fit into `_MOST_BYTES`, and is told so when it
reads again. What the supervisor says begins on a line of its own. `Terminal` serves any thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ckptkit.core.text import size
from ckptkit.core.worker import Worker
from ckptkit.tools.supervisor.processes import watch_end

_CHUNK_BYTES = 1 << 16
_KEPT_BYTES = 1 << 16
_STDERR = 2
_STANDARD = 3  # descriptors: stdin, stdout, stderr
_MOST_BYTES = 1 << 20  # held of what the job writes; the supervisor's own lines may fill as much again
_PATIENCE_SECONDS = 2.0
_AT_ONCE_BYTES = select.PIPE_BUF  # a pipe that can be written takes so many


class CannotStartError(Exception):
    """The program cannot be started."""


class Command:
    """Runs the command of one life, with this process's stdin and stdout; CannotStartError if that is impossible."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], pass_on: Callable[[bytes], None]
    ) -> None:
        self._show = pass_on
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command is the user's own
                command, env=environment, stderr=write_end, start_new_session=True
            )
        except OSError as error:
            os.close(self._read_end)
            raise CannotStartError(f"{command[0]} cannot be started: {error.strerror or error}") from error
        finally:
            os.close(write_end)
        self.end = watch_end(self._process.pid)
        self._tee = Worker(self._pass_on, "ckptkit-stderr")
        self._tee.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def returncode(self) -> int:
        """Wait for its end and return the exit code, as `subprocess` does."""
        return self._process.wait()

    def close(self, seconds: float) -> str:
        """Return the end of its stderr, once no process holds it, or ``seconds`` are over; it must have ended."""
        self._tee.wait(seconds)
        if self.end is not None:
            os.close(self.end)
        return b"".join(self._kept).decode(errors="replace")

    def _pass_on(self) -> None:
        try:
            while data := os.read(self._read_end, _CHUNK_BYTES):
                self._kept.append(data)
                self._kept_bytes += len(data)
                while self._kept_bytes - len(self._kept[0]) >= _KEPT_BYTES:
                    self._kept_bytes -= len(self._kept.popleft())
                self._show(data)
        finally:
            os.close(self._read_end)


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
