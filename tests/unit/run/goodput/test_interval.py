from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ckptkit.run.goodput import lost_seconds
from ckptkit.run.interval import Failures, SaveTimes, choose_interval, daly

HOUR, DAY = 3600.0, 86_400.0


def waste(interval: float, stall: float, mean: float) -> float:
    """Share of the time that is lost, for exponential times between failures (Daly's model)."""
    return 1 - interval / (mean * math.expm1((interval + stall) / mean))


def test_daly_is_the_best_interval():
    for stall, mean in [(0.1, DAY), (1.0, HOUR), (20.0, 600.0), (60.0, 600.0), (300.0, HOUR)]:
        chosen = daly(stall, mean)
        around = [waste(chosen * factor, stall, mean) for factor in (0.5, 0.8, 1.25, 2.0)]
        assert waste(chosen, stall, mean) < min(around)
        best = min(waste(chosen * 2 ** (place / 50), stall, mean) for place in range(-100, 101))
        assert waste(chosen, stall, mean) <= best * 1.005
    assert daly(0.0, HOUR) == 0.0  # free saves
    assert daly(3 * HOUR, HOUR) == HOUR  # hopeless ones


def test_history_outweighs_the_prior():
    for failures, low, high in [
        (Failures(0, 0.0), 60, 300),  # the prior alone
        (Failures(0, HOUR), 3 * HOUR, 24 * HOUR),
        (Failures(0, 30 * DAY), 30 * DAY, 100 * DAY),
        (Failures(1, HOUR), 0.9 * HOUR, 1.1 * HOUR),
        (Failures(29, 29 * HOUR), 0.95 * HOUR, 1.05 * HOUR),
        (Failures(1000, 1000 * HOUR), 0.999 * HOUR, 1.001 * HOUR),
    ]:
        assert low <= 1 / failures.rate <= high, failures


@given(st.integers(0, 100), st.floats(0, 1e9), st.floats(1, 1e6))
def test_rate_rises_with_failures_and_falls_with_time(count, seconds, more):
    now = Failures(count, seconds)
    assert Failures(count + 1, seconds).rate >= now.rate * (1 - 1e-9) or count + 1 == 30
    assert now.longer(more).rate <= now.rate * (1 + 1e-9)


def test_what_bounds_the_interval():
    stalls, slow = SaveTimes(stall_seconds=20.0, took_seconds=1.0), SaveTimes(0.01, 400.0)
    for times, failures, bound, seconds in [
        (stalls, Failures(), "overhead", 2000.0),
        (slow, Failures(5, HOUR), "storage", 500.0),
        (slow, Failures(0, HOUR), "storage", 1600.0),
    ]:
        choice = choose_interval(times, failures, 0.01)
        assert (choice.bound, choice.seconds) == (bound, seconds)
    failed = choose_interval(stalls, Failures(1, 600.0), 0.01)
    assert failed.bound == "failures"
    assert failed.seconds < 200


def test_work_lost_is_half_an_interval_and_the_write():
    assert lost_seconds(1000.0, 100.0, 7.0) == 57.0
    assert lost_seconds(20.0, 100.0, 7.0) == 20.0
