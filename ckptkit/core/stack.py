"""Finds the calls that the present thread is in, such as those that a signal handler interrupted.

Threads: any; each sees its own calls.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def call_of(
    methods: Mapping[int, str], one: Any, frame: FrameType | None, *, until: CodeType | None = None
) -> str | None:
    """Return the name of the innermost of an object's ``methods`` that a frame is a part of; None if of none.

    Args:
        methods: What to look for: names by the `id` of the code. The hash of a code reads all of it.
        one: The object.
        frame: Where to begin.
        until: A call where the search ends.
    """
    while frame is not None and frame.f_code is not until:
        # The code first: reading the variables of a frame costs more.
        if id(frame.f_code) in methods and frame.f_locals.get("self") is one:
            return methods[id(frame.f_code)]
        frame = frame.f_back
    return None


class SignalHandlers:
    """Knows the signal handlers in Python. Asking for all of them takes 0.1 ms, which is too much for each step."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}  # by id: the hash of a code reads all of it
        self._older: set[tuple[int, int]] = set()  # ids of codes, each with the number of frames below

    def look(self) -> None:
        """Note the handlers that are installed now, besides those noted before: a handler may have reset its own."""
        found = (_code_of(signal.getsignal(one)) for one in signal.valid_signals())
        self._codes |= {id(code): code for code in found if code is not None}

    def note_running(self) -> None:
        """Note that what runs now is the program itself, also if a signal called it."""
        self._older = {(id(frame.f_code), depth) for frame, depth in self._called()}

    def running(self) -> str | None:
        """Return the name of the noted handler that a signal has called, and that the caller is a part of, or None."""
        if not self._codes or threading.current_thread() is not threading.main_thread():  # Python runs them there
            return None
        found = ((frame.f_code, depth) for frame, depth in self._called())
        return next((code.co_name for code, depth in found if (id(code), depth) not in self._older), None)

    def _called(self) -> Iterator[tuple[FrameType, int]]:
        """Yield the frames of noted handlers that signals have called, each with the number of frames below it."""
        frames = [*frames_from(sys._getframe(1))]
        for at, frame in enumerate(frames):
            if id(frame.f_code) in self._codes and _is_called_by_signal(frame):
                yield frame, len(frames) - at


def _is_called_by_signal(frame: FrameType) -> bool:
    """Return whether a handler has what Python gives it: the frame that it interrupted, from which it is called."""
    given = [(one, *one) if type(one) is tuple else (one,) for one in frame.f_locals.values()]
    return any(one is frame.f_back for each in given for one in each)


def _code_of(handler: Any) -> CodeType | None:
    """Return what a handler runs; None if that is not code in Python."""
    while isinstance(handler, (functools.partial, MethodType)):
        handler = handler.func if isinstance(handler, functools.partial) else handler.__func__
    if not isinstance(handler, FunctionType):
        kinds = [one for one in type(handler).__mro__ if "__call__" in vars(one)]
        handler = vars(kinds[0])["__call__"] if kinds else None
    return handler.__code__ if isinstance(handler, FunctionType) else None
