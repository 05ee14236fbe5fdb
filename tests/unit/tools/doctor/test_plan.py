"""Where the doctor saves and kills."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.doctor_lives import progress

from ckptkit.tools.doctor.plan import plan_deaths


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
def test_four_deaths_cover_two_epochs_and_epoch_end(steps, k, size):
    """Three are in mid-cycle, the first in an epoch before the others, and one is right at the end of an epoch."""
    deaths = plan_deaths(at(steps, k, size), 4)
    where = [progress(one.save, k, size) for one in deaths]
    assert [one.kill > one.save for one in deaths] == [one.batch > 0 for one in where]
    ends = [one for one in where if one.batch == 0]
    inside = [one for one in where if one.batch]
    assert len(ends) == 1
    assert inside[0].epoch < inside[1].epoch
    assert all(one.micro_step for one in inside)


@given(st.integers(21, 60), st.integers(2, 6), st.integers(5, 10))
def test_two_deaths_are_in_different_epochs(steps, k, size):
    """What a callback changes when a later epoch begins is lost only there."""
    first, second = (progress(one.save, k, size) for one in plan_deaths(at(steps, k, size), 2))
    assert first.epoch < second.epoch
    assert first.micro_step
    assert second.batch


@given(st.integers(4, 9), st.integers(2, 6), st.integers(3, 5))
def test_second_death_is_in_a_later_epoch_that_another_one_follows(size, k, epochs):
    """An order that a lost generator makes differs there, and in no life that begins in the first or last epoch."""
    steps = size * epochs
    second = progress(plan_deaths(at(steps, k, size), 2)[1].save, k, size)
    assert 0 < second.epoch < epochs - 1


def test_fourth_death_is_in_the_epoch_of_the_second():
    found = [progress(one.save, 3, 12) for one in plan_deaths(at(40, 3, 12), 4)]
    epochs = [one.epoch for one in found if one.batch]
    assert len(epochs) == 3
    assert epochs[1] == epochs[2] > epochs[0]
    fifth = plan_deaths(at(24, 3, 7), 5)
    assert any(not death.save % 3 and death.save % 7 for death in fifth), "one is at a boundary inside an epoch"
    (death,) = plan_deaths(at(24, 1, 100), 1)
    assert all(death.save % k for k in (2, 3, 4, 6, 8)), "an unknown cycle may be any usual one"
