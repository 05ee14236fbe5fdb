"""Where the doctor saves and kills."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.doctor_lives import progress

from ckptkit.tools.doctor.plan import Death, plan_deaths


def at(steps: int, k: int, size: int):
    return [progress(step, k, size) for step in range(1, steps + 1)]


@given(st.integers(2, 60), st.integers(1, 6), st.integers(1, 20), st.integers(1, 8))
def test_deaths_follow_ascending_saves_closely(steps, k, size, kills):
    """Saves ascend, and each death comes at its save or at most two steps later."""
    deaths = plan_deaths(at(steps, k, size), kills)
    saves = [one.save for one in deaths]
    assert saves == sorted(set(saves))
    assert len(deaths) == min(kills, steps - 1)
    assert all(1 <= one.save <= one.kill <= min(one.save + 2, steps) for one in deaths)
    assert saves[-1] < steps  # something is left to do for the last life


@given(st.integers(21, 60), st.integers(2, 6), st.integers(5, 10))
def test_three_deaths_cover_mid_cycle_and_epoch_end(steps, k, size):
    """Two of the deaths are in mid-cycle in one epoch, and one is right at the end of an epoch."""
    deaths = plan_deaths(at(steps, k, size), 3)
    where = [progress(one.save, k, size) for one in deaths]
    assert [one.kill > one.save for one in deaths] == [one.batch > 0 for one in where]
    ends = [one for one in where if one.batch == 0]
    inside = [one for one in where if one.batch]
    assert len(ends) == 1
    assert len({one.epoch for one in inside}) == 1
    assert all(one.micro_step for one in inside)


def test_fourth_death_is_at_boundary_inside_epoch():
    assert any(not one.save % 3 and one.save % 7 for one in plan_deaths(at(24, 3, 7), 4))


def test_unknown_cycle_puts_first_death_mid_cycle():
    """Without a known K, the first death is in mid-cycle for every usual K."""
    (death,) = plan_deaths(at(24, 1, 100), 1)
    assert all(death.save % k for k in (2, 3, 4, 6, 8))


def test_every_micro_step():
    assert plan_deaths(at(4, 2, 9), 1, every_micro_step=True) == [Death(1, 1), Death(2, 2), Death(3, 3)]
