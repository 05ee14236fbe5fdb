"""A long wait logs how it goes on, and a short one logs nothing."""

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest
from support.runs.scenario import Life, history, name_at

from ckptkit.core.waiting import LongWait, countdown
from ckptkit.run import attempt


@pytest.fixture
def clock():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


def test_a_wait_logs_every_half_minute(clock, caplog):
    """After a standstill no line is made up for."""
    caplog.set_level(logging.INFO, "ckptkit")
    wait = LongWait("restoring it", 100 << 20, monotonic=clock)
    for seconds, mib in [(29.0, 1), (2.0, 9), (10.0, 1), (25.0, 9), (100.0, 1), (1.0, 1)]:
        clock.now += seconds
        wait.advance(mib << 20)
    said = [(10, "0:00:31"), (20, "0:01:06"), (21, "0:02:46")]
    assert caplog.messages == [f"restoring it: {mib} of 100 MiB after {spent}" for mib, spent in said]


def test_countdown_ends_at_zero(monkeypatch, clock):
    """Who waits until nothing is left would miss it otherwise."""
    monkeypatch.setattr("ckptkit.core.waiting.time", SimpleNamespace(monotonic=clock))
    seconds_left, left = countdown(timedelta(seconds=60)), []
    for clock.now in (0, 59, 60, 100):
        left.append(seconds_left())
    assert left == [60, 1, 0, 0]
    assert countdown(None)() == float("inf")


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
