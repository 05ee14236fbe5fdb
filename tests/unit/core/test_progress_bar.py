"""A long wait shows how it goes on, a short one shows nothing, and neither draws a random number."""

import io
import logging
import random
from datetime import timedelta
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.process import python
from support.runs.scenario import Life, history, name_at

from ckptkit.core.progress_bar import LongWait, countdown
from ckptkit.run import attempt


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


def shown(clock, steps, *, terminal):
    """What a wait of (seconds, bytes) steps puts on the console."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    with LongWait("restoring it", 100 << 20, monotonic=clock, console=console) as wait:
        for seconds, done_bytes in steps:
            clock.now += seconds
            wait.advance(done_bytes)
    clock.now += 100.0
    wait.advance(1)  # after its end it says nothing more
    return out.getvalue()


def test_a_terminal_sees_a_bar_after_a_moment(clock):
    text = shown(clock, [(1.0, 10 << 20), (1.5, 40 << 20)], terminal=True)
    assert "restoring it" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    assert "50.0/100.0 MiB" in text


def test_a_short_wait_shows_nothing(clock, caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    assert not shown(clock, [(1.9, 100 << 20)], terminal=True)
    assert not shown(clock, [(1.9, 100 << 20)], terminal=False)
    assert not caplog.messages


def test_wait_without_terminal_logs_every_half_minute(clock, caplog):
    """After a standstill no line is made up for."""
    caplog.set_level(logging.INFO, "ckptkit")
    steps = [(29.0, 1), (2.0, 9), (10.0, 1), (25.0, 9), (100.0, 1), (1.0, 1)]
    assert not shown(clock, [(seconds, mib << 20) for seconds, mib in steps], terminal=False)
    said = [(10, "0:00:31"), (20, "0:01:06"), (21, "0:02:46")]
    assert caplog.messages == [f"restoring it: {mib} of 100 MiB after {spent}" for mib, spent in said]


def test_countdown_ends_at_zero(monkeypatch, clock):
    """Who waits until nothing is left would miss it otherwise."""
    monkeypatch.setattr("ckptkit.core.progress_bar.time", SimpleNamespace(monotonic=clock))
    seconds_left, left = countdown(timedelta(seconds=60)), []
    for clock.now in (0, 59, 60, 100):
        left.append(seconds_left())
    assert left == [60, 1, 0, 0]
    assert countdown(None)() == float("inf")


def test_import_and_bar_leave_global_generator_alone(clock):
    before = random.getstate()
    shown(clock, [(3.0, 1)], terminal=True)
    assert random.getstate() == before
    code = "from random import *; seed(3); a = getstate(); import ckptkit.core.progress_bar; assert a == getstate()"
    python("-c", code)


def test_restore_waits_for_every_byte(tmp_path, monkeypatch):
    history(tmp_path)
    waits = []

    class Told(LongWait):
        def __init__(self, what, total_bytes):
            super().__init__(what, total_bytes)
            waits.append((what, total_bytes, []))

        def advance(self, size_bytes):
            waits[-1][2].append(size_bytes)

    monkeypatch.setattr(attempt, "LongWait", Told)
    Life(tmp_path).restore()
    ((what, total_bytes, told),) = waits
    assert what == f"restoring {name_at(1, 6)}"
    assert sum(told) == total_bytes > 0
