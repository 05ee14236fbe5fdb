"""Notes what the steps of a training read outside of the process: files that change, databases, other processes.

It listens to Python's audit events from the first micro-step on, and counts only what the user's code does.

Guarantees: reads the sizes and times of files, not their contents. An audit hook cannot be removed; it returns at once
outside of a training. Main thread only.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ckptkit.mindspore.observe.users import is_users_frame

_EVENTS = frozenset(
    (
        *("open", "os.listdir", "os.scandir", "subprocess.Popen", "os.system", "os.posix_spawn"),
        *("sqlite3.connect", "socket.connect"),
    )
)
_NOT_STATE = ("/dev/", "/proc/", "/sys/", "/usr/")
_PASSED_OVER = frozenset(("ckptkit", "mindspore", "importlib", "linecache"))


class Outside:
    """Notes what one training reads and runs outside of its process."""

    def __init__(self) -> None:
        self._is_on, self._thread = False, 0
        self._read: dict[str, set[object]] = {}
        self._written: set[str] = set()
        self._ran: set[str] = set()
        self._connected: set[str] = set()

    def begin(self) -> None:
        """Listen from now on, in this process."""
        self._is_on, self._thread = True, threading.get_ident()
        _LISTENING.add(self)
        _listen()

    def end(self) -> None:
        """Stop listening."""
        self._is_on = False
        _LISTENING.discard(self)

    def changed(self) -> Iterator[tuple[str, str]]:
        """Yield what training depends on there, with what it is."""
        for path, states in self._read.items():
            if len(states) > 1 or path in self._written:
                yield os.path.basename(path.rstrip("/")), "file, written and read by the training"
        yield from ((os.path.basename(name), "process") for name in sorted(self._ran))
        yield from ((name, "connection") for name in sorted(self._connected))

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of the user's code."""
        if not self._is_on or threading.get_ident() != self._thread:
            return
        self._is_on = False  # what is read here is no event
        try:
            if _by_users(sys._getframe(2)):
                self._note(event, arguments)
        finally:
            self._is_on = True

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.listdir", "os.scandir"):
            folder = arguments[0] if isinstance(arguments[0], (str, bytes)) else "."
            path = os.path.abspath(os.fsdecode(folder))
            self._read.setdefault(f"{path}/", set()).add(_state_of(path))
        elif event == "open":
            self._note_open(*arguments)
        elif event == "sqlite3.connect":
            self._connected.add(f"sqlite {os.fsdecode(arguments[0])}")
        elif event == "socket.connect":
            self._connected.add("socket")
        else:
            self._ran.add(str(arguments[0])[:60])

    def _note_open(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, (str, bytes)):
            return
        path = os.path.abspath(os.fsdecode(path))
        if path.startswith(_NOT_STATE) and not path.startswith("/dev/shm/"):  # noqa: S108 - none is made
            return
        writes = any(letter in mode for letter in "wax+") if mode else bool(flags & (os.O_WRONLY | os.O_RDWR))
        reads = not writes or bool(mode and "+" in mode) or bool(not mode and flags & os.O_RDWR)
        if writes:
            self._written.add(path)
        if reads:
            self._read.setdefault(path, set()).add(_state_of(path))


_LISTENING: weakref.WeakSet[Outside] = weakref.WeakSet()
_HOOKED: list[bool] = []


def _listen() -> None:
    if not _HOOKED:
        _HOOKED.append(True)
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


def _by_users(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
            return False
        if is_users_frame(frame):
            return True
        frame = frame.f_back
    return False
