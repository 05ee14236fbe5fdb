"""AccumulationSchedule: K as a function of the optimizer step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.accumulation import AccumulationSchedule


def test_an_int_is_in_force_for_ever():
    schedule = AccumulationSchedule(3)
    assert [schedule.at(step) for step in (0, 1, 10**9)] == [3, 3, 3]
    assert schedule.recorded() == [[0, 3]]


def test_a_mapping_says_from_which_step_on():
    schedule = AccumulationSchedule({100: 8, 0: 1, 10: 4})
    assert [schedule.at(step) for step in (0, 9, 10, 99, 100, 10**9)] == [1, 1, 4, 4, 8, 8]
    assert schedule.recorded() == [[0, 1], [10, 4], [100, 8]]


def test_function_schedule_is_called_and_not_recorded():
    """A function is called for every step, and has no text to record and compare."""
    schedule = AccumulationSchedule(lambda step: 1 + step // 2)
    assert [schedule.at(step) for step in (0, 1, 2, 5)] == [1, 1, 2, 3]
    assert schedule.recorded() is None


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 9)), st.integers(1, 9), st.integers(0, 60))
def test_latest_begun_schedule_entry_is_in_force(later, first, step):
    entries = {**later, 0: first}
    assert AccumulationSchedule(entries).at(step) == entries[max(at for at in entries if at <= step)]


@pytest.mark.parametrize("steps", [0, -1, True, 2.0, "4", None, {}, {1: 2}, {0: 0}, {0: 1, -3: 2}, {0: 1, 1.5: 2}])
def test_what_is_no_schedule_is_refused(steps):
    with pytest.raises(ValueError, match=r"accumulation_steps|a step of the schedule"):
        AccumulationSchedule(steps)


def test_function_with_invalid_k_is_refused_when_called():
    with pytest.raises(ValueError, match=r"accumulation_steps\(0\) must be an int of at least 1, got 0"):
        AccumulationSchedule(lambda step: step)
    schedule = AccumulationSchedule(lambda step: 2 if step < 3 else None)
    with pytest.raises(ValueError, match=r"accumulation_steps\(3\)"):
        schedule.at(3)
