"""``SaveEvery.auto``'s arithmetic against the best fixed interval of hindsight, over published failures."""

import pytest

from benchmarks.intervals.simulation import Job, auto, best_fixed, fixed
from benchmarks.intervals.traces import Trace, lanl, llama3


def assert_close(trace, *jobs):
    for job in jobs:
        _, best = best_fixed(trace, job)
        assert auto(trace, job, 0.01) >= 0.97 * best


def test_auto_is_within_3_percent_of_hindsight():
    for trace in (lanl()[0], llama3()):
        assert_close(trace, Job(20, 60, 60))


@pytest.mark.parametrize("trace", lanl(), ids=lambda trace: trace.name)
def test_auto_is_within_3_percent_at_ten_minutes(trace):
    """The pattern of the failures is that of the trace, on a faster clock."""
    assert_close(trace.at_mean(600), Job(1, 10, 60), Job(20, 60, 60))


def test_simulation_sees_bad_intervals_and_counts_commits():
    trace, job = lanl()[-1].at_mean(600), Job(1, 10, 60)
    _, best = best_fixed(trace, job)
    assert fixed(trace, job, 600) < 0.8 * best
    assert fixed(trace, job, 2) < 0.8 * best
    trace, job = Trace("two", (110.0, 20.0)), Job(stall=1, took=5, restart=9)
    # 101 s of running: commits at 15, 26, 37, ..., 92; after the restart 11 s: none.
    assert fixed(trace, job, 10.0) == pytest.approx(80 / 130)
    assert fixed(trace, job, 200.0) == 0.0
