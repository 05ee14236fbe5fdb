"""Ctrl-C at a moment that a test chooses."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType

import pytest


class InterruptedStart:
    """Ctrl-C that arrives in ``Thread.start``, for the first thread of a name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, *, runs: bool) -> None:
        self.fired = 0
        start = threading.Thread.start

        def interrupted(thread: threading.Thread) -> None:
            if thread.name != name or self.fired:
                return start(thread)
            self.fired += 1
            if runs:
                start(thread)
            raise KeyboardInterrupt

        monkeypatch.setattr(threading.Thread, "start", interrupted)


class InterruptedCall:
    """Ctrl-C at the ``nth`` place where Python lets a signal in, counted in some modules: where a call begins or ends.

    A context. The places are those of the thread that enters it, and of it alone.
    """

    def __init__(
        self,
        nth: int,
        modules: Sequence[ModuleType],
        counts: Callable[[], bool] = lambda: True,
        act: Callable[[], None] | None = None,
    ) -> None:
        self.fired = 0
        self._act = act
        self._left = nth
        self._files = {one.__file__ for one in modules}
        self._counts = counts

    def __enter__(self) -> InterruptedCall:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        # Not before a call of C code: nothing can arrive between the statement before it and that call.
        if event not in ("call", "return", "c_return") or frame.f_code.co_filename not in self._files:
            return
        self._left -= self._counts()
        if not self._left:
            self.fired += 1
            sys.setprofile(None)
            if self._act is None:
                raise KeyboardInterrupt
            self._act()
