"""How much fits into a given time."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from support.doctor_lives import life, progress, stepped

from ckptkit.tools.doctor.budget import FEWEST_STEPS, Fitting, LifeCost, TimeBudget, cost_of
from ckptkit.tools.doctor.plan import plan_deaths


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def budget(seconds: float | None) -> tuple[TimeBudget, Clock]:
    clock = Clock()
    return TimeBudget(None if seconds is None else timedelta(seconds=seconds), clock), clock


def test_costs_are_those_of_the_first_life():
    lines = [stepped(step).model_copy(update={"at": 50 + 2.0 * step}) for step in (1, 2, 3)]
    cost = cost_of(life(lines, began_at=47.0))
    assert (cost.start, cost.step) == (5, 2)
    assert cost_of(life(lines[:1], began_at=47.0)).step == 0
    assert (cost.of_life(3), cost.of_life(0)) == (9, 5)
    assert str(cost) == "5.0 s until its first micro-step has ended, and 2 s for each further one"


def test_what_follows_the_last_micro_step_costs_each_life_that_comes_so_far():
    """Such as another run of the script; a life of fewer micro-steps stops before it, and one that is killed, too."""
    lines = [stepped(step).model_copy(update={"at": 50 + 2.0 * step}) for step in (1, 2, 3, 4)]
    cost = cost_of(life(lines, began_at=47.0, seconds=41.0))
    assert cost == LifeCost(5, 2, 30)
    assert str(cost).endswith(", and 30.0 s after the last")
    assert (cost.of_life(4), cost.of_chain(4, 1), LifeCost(5, 2).of_chain(4, 1)) == (41, 52, 22)
    assert budget(1.25 * (41 + 52))[0].fit(cost, 4, 1) == Fitting(4, 1)
    assert budget(1.25 * (9 + 20))[0].fit(cost, 4, 1) == Fitting(3, 1)


def test_without_a_limit_everything_fits():
    unlimited, clock = budget(None)
    clock.now += 1e9
    assert unlimited.fit(LifeCost(1e6, 1e6), 24, 3) == Fitting(24, 3)
    assert (unlimited.first_ends, unlimited.is_over) == (None, False)
    assert unlimited.limit(timedelta(hours=1)) == timedelta(hours=1)


def test_kills_come_before_micro_steps():
    for seconds, expected in {
        85: Fitting(24, 3),  # the lives after the first take 68 s, and 25 % more
        84: Fitting(23, 3),
        55: Fitting(12, 3),
        54: Fitting(14, 2),  # too few micro-steps would be left for a third kill
        38: Fitting(10, 1),
        18: Fitting(2, 1),
        17: None,
    }.items():
        limited, clock = budget(seconds + 3)
        clock.now += 3
        assert limited.fit(LifeCost(3, 1), 24, 3) == expected, seconds


def test_own_saves_take_two_more_lives():
    cost = LifeCost(3, 1)
    assert cost.of_rest(2, 1, own_saves=True) - cost.of_rest(2, 1) == cost.of_chain(2, 1) == 10
    limited, _ = budget(29.9)
    assert limited.fit(cost, 24, 1) == Fitting(6, 1)
    assert limited.fit(cost, 24, 1, own_saves=True) is None
    assert limited.needed(cost, own_saves=True) > 30 > limited.needed(cost)


@given(st.floats(1, 1000), st.floats(0.1, 60), st.floats(0, 20), st.integers(2, 40), st.integers(1, 9))
def test_what_fits_takes_no_longer(seconds, start, step, steps, kills):
    limited, _ = budget(seconds)
    cost = LifeCost(start, step)
    fitting = limited.fit(cost, steps, kills)
    if fitting is None:
        assert cost.of_rest(FEWEST_STEPS, 1) * 1.25 > seconds
        assert limited.needed(cost) > seconds
    else:
        assert cost.of_rest(fitting.steps, fitting.kills) * 1.25 <= seconds
        assert FEWEST_STEPS <= fitting.steps <= steps
        assert 1 <= fitting.kills <= kills


@given(st.floats(0.1, 60), st.floats(0, 20))
def test_time_that_is_asked_for_is_enough(start, step):
    """Even if the first life takes all of its share."""
    cost = LifeCost(start, step)
    limited, clock = budget(budget(1)[0].needed(cost) + 0.01)
    clock.now = max(limited.first_ends, clock.now + cost.of_life(FEWEST_STEPS))
    assert limited.fit(cost, 24, 3) is not None


def test_limit_of_a_life_is_what_is_left():
    limited, clock = budget(10)
    assert limited.first_ends == 102
    assert limited.limit(timedelta(seconds=4)) == timedelta(seconds=4)
    clock.now += 7
    assert (limited.left, limited.spent) == (3, 7)
    assert limited.limit(timedelta(seconds=4)) == timedelta(seconds=3)
    clock.now += 3
    assert limited.is_over
    clock.now += 3
    assert limited.limit(timedelta(seconds=4)) == timedelta(0)


def at(steps: int, k: int, size: int):
    return [progress(step, k, size) for step in range(1, steps + 1)]


@given(st.integers(2, 60), st.integers(1, 6), st.integers(1, 20), st.integers(1, 8))
def test_deaths_follow_ascending_saves_closely(steps, k, size, kills):
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
