"""Writes to stderr what the job writes there, and what the supervisor says of it.

Guarantees: a stderr that is closed, full, or read by nobody any more stops neither the job nor its supervisor. What the
supervisor says begins on a line of its own. Two threads, one of which writes what the job writes.
"""

from __future__ import annotations

import os
import threading

_STDERR = 2
_STANDARD = 3  # descriptors: stdin, stdout, stderr


class Terminal:
    """Writes to stderr."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_within_line = False

    def pass_on(self, data: bytes) -> None:
        """Write what the job has written."""
        with self._lock:
            self._is_within_line = not data.endswith(b"\n")
            _write(data)

    def say(self, line: str) -> None:
        """Write a line of the supervisor's."""
        with self._lock:
            start = "\n" if self._is_within_line else ""
            self._is_within_line = False
            _write(f"{start}[ckptkit run] {line}\n".encode(errors="backslashreplace"))


def open_standard_descriptors() -> None:
    """Open what is closed of stdin, stdout and stderr, or else the next pipe would get its number."""
    for number in range(_STANDARD):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[os.write(_STDERR, data) :]
    except OSError:
        return
