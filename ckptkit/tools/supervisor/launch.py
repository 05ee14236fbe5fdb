"""Starts the command of a life in a session of its own, and keeps the end of what it writes to stderr.

Guarantees: what the command writes to stderr is passed on unchanged and at once. At most `_KEPT_BYTES` of it are held.
The command gets this process's stdin and stdout; a stdin that is a file is read from its place at the first start. One
thread, beside the one that passes stderr on.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ckptkit.core.worker import Worker
from ckptkit.tools.supervisor.processes import watch_end

_CHUNK_BYTES = 1 << 16
_KEPT_BYTES = 1 << 16


class CannotStartError(Exception):
    """The program cannot be started."""


class Command:
    """Runs the command of one life.

    Args:
        command: Program and arguments.
        environment: All variables.
        pass_on: Gets what it writes to stderr.

    Raises:
        CannotStartError: If the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], pass_on: Callable[[bytes], None]
    ) -> None:
        self._show = pass_on
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._ear, mouth = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command is the user's own
                command, env=environment, stderr=mouth, start_new_session=True
            )
        except OSError as error:
            os.close(self._ear)
            raise CannotStartError(f"{command[0]} cannot be started: {error.strerror or error}") from error
        finally:
            os.close(mouth)
        self.end = watch_end(self._process.pid)
        self._tee = Worker(self._pass_on, "ckptkit-stderr")
        self._tee.start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Return whether it has ended."""
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
            while data := os.read(self._ear, _CHUNK_BYTES):
                self._kept.append(data)
                self._kept_bytes += len(data)
                while self._kept_bytes - len(self._kept[0]) >= _KEPT_BYTES:
                    self._kept_bytes -= len(self._kept.popleft())
                self._show(data)
        finally:
            os.close(self._ear)
