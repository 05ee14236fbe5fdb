"""Notes what the steps of a training read outside of the process: files that change, databases, other processes.

It listens to Python's audit events from the first micro-step on, and counts only what the user's code does.

Guarantees: reads the sizes and times of files, not their contents. An audit hook cannot be removed; it returns at once
outside of a training. Main thread only.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ckptkit.mindspore.observe.user_code import is_users_frame

_FOLDERS = ("os.listdir", "os.scandir")
_PROCESSES = ("subprocess.Popen", "os.system", "os.posix_spawn")
_CONNECTIONS = ("sqlite3.connect", "socket.connect")
_EVENTS = frozenset(("open", *_FOLDERS, *_PROCESSES, *_CONNECTIONS))
_NOT_STATE = ("/dev/", "/proc/", "/sys/", "/usr/")
_PASSED_OVER = frozenset(("ckptkit", "mindspore", "importlib", "linecache"))


class Outside:
    """Notes what one training reads and runs outside of its process."""

    def __init__(self) -> None:
        self._thread = 0  # 0: none
        self._read: dict[str, set[object]] = {}
        self._written: set[str] = set()
        self._used: dict[str, str] = {}

    def begin(self) -> None:
        """Listen from now on, to this thread."""
        self._thread = threading.get_ident()
        _LISTENING.add(self)
        _listen()

    def changed(self) -> Iterator[tuple[str, str]]:
        """Yield what training depends on there, with what it is."""
        for path, states in self._read.items():
            if len(states) > 1 or path in self._written:
                yield os.path.basename(path), "file, written and read by the training"
        yield from self._used.items()

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event, if it is of the user's code."""
        if threading.get_ident() != self._thread or not _is_users(sys._getframe(2)):
            return
        given, *more = arguments
        if event in _PROCESSES:
            self._used.setdefault(os.path.basename(str(given)[:60]), "process")
        elif event in _CONNECTIONS:
            name = os.path.basename(os.fsdecode(given)) if event == "sqlite3.connect" else "socket"
            self._used.setdefault(name, "connection")
        elif event in _FOLDERS:
            self._note_file(given if isinstance(given, (str, bytes)) else ".")
        elif isinstance(given, (str, bytes)):
            mode, flags = more
            writes = any(letter in mode for letter in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)
            reads = "+" in mode if mode else flags & os.O_RDWR
            self._note_file(given, writes=bool(writes), reads=bool(reads or not writes))

    def _note_file(self, given: str | bytes, *, writes: bool = False, reads: bool = True) -> None:
        path = os.path.abspath(os.fsdecode(given))
        if path.startswith(_NOT_STATE) and not path.startswith("/dev/shm/"):  # noqa: S108 - none is made
            return
        if writes:
            self._written.add(path)
        if reads:
            self._read.setdefault(path, set()).add(_state_of(path))


_LISTENING: weakref.WeakSet[Outside] = weakref.WeakSet()


@functools.cache
def _listen() -> None:
    sys.addaudithook(_hook)
    atexit.register(_LISTENING.clear)


def _hook(
    event: str,
    arguments: tuple[Any, ...],
    *,
    events: frozenset[str] = _EVENTS,
    listening: weakref.WeakSet[Outside] = _LISTENING,
) -> None:
    if event in events:  # as arguments: the names of a module are gone before the last event
        for outside in [*listening]:
            outside.note(event, arguments)


def _state_of(path: str) -> object:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns, state.st_ino


def _is_users(frame: types.FrameType | None) -> bool:
    while frame is not None and not is_users_frame(frame):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
            return False
        frame = frame.f_back
    return frame is not None
