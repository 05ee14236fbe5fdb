"""Ctrl-C at a moment that a test chooses."""

from __future__ import annotations

import threading

import pytest


class InterruptedStart:
    """Ctrl-C that arrives in ``Thread.start``, for the first thread of a name.

    Args:
        monkeypatch: Takes it away after the test.
        name: Name of the thread.
        runs: Whether the thread has been started by then.

    Attributes:
        fired: How often it arrived.
    """

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
