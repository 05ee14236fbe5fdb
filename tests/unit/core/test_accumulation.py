"""Accumulation steps K: as a function of the optimizer step, for a batch size, and for another number of ranks."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import unrefused

from ckptkit.core.accumulation import (
    AccumulationPlan,
    AccumulationSchedule,
    fold_progress,
    nearest_plans,
    plan_accumulation,
    scale_learning_rate,
    shares,
)
from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError

WORLDS = st.integers(1, 40)
POSITIVE = st.integers(1, 400)


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 9)), st.integers(1, 9), st.integers(0, 60))
def test_latest_begun_schedule_entry_is_in_force(later, first, step):
    entries = {**later, 0: first}
    schedule = AccumulationSchedule(entries)
    assert schedule.at(step) == entries[max(at for at in entries if at <= step)]
    assert schedule.recorded() == [list(pair) for pair in sorted(entries.items())]


def test_function_schedule_is_called_and_not_recorded():
    """A function is called for every step, and has no text to record and compare; an int is in force for ever."""
    schedule = AccumulationSchedule(lambda step: 1 + step // 2 if step < 9 else None)
    assert [schedule.at(step) for step in (0, 1, 2, 5)] == [1, 1, 2, 3]
    assert schedule.recorded() is None
    with pytest.raises(ValueError, match=r"accumulation_steps\(9\) must be an int of at least 1, got None"):
        schedule.at(9)
    assert AccumulationSchedule(3).recorded() == [[0, 3]]


def test_what_is_no_schedule_is_refused():
    schedules = [0, -1, True, 2.0, "4", None, {}, {1: 2}, {0: 0}, {0: 1, -3: 2}, {0: 1, 1.5: 2}, lambda step: step]
    rows = [(steps, "accumulation_steps|a step of the schedule") for steps in schedules]
    assert unrefused(ValueError, AccumulationSchedule, rows) == {}


@given(st.integers(1, 10_000), POSITIVE, POSITIVE)
def test_plan_is_exact_or_names_nearest_plans(global_batch, world_size, micro_batch):
    near = nearest_plans(global_batch, world_size, micro_batch)
    if global_batch % (world_size * micro_batch):
        with pytest.raises(ValueError, match="nearest plans") as refusal:
            plan_accumulation(global_batch, world_size, micro_batch)
        assert all(str(one) in str(refusal.value) for one in near)
    else:
        plan = plan_accumulation(global_batch, world_size, micro_batch)
        assert plan == near[0] == AccumulationPlan(global_batch // (world_size * micro_batch), world_size, micro_batch)
        assert plan.effective_batch == global_batch
    distances = [abs(one.effective_batch - global_batch) for one in near]
    assert distances == sorted(distances)
    assert all(1 <= one.micro_batch <= micro_batch and one.world_size == world_size for one in near)
    # With K free and the micro-batch as asked for, nothing is nearer than the first of these.
    free = min(abs(k * world_size * micro_batch - global_batch) for k in range(1, global_batch // world_size + 2))
    assert distances[0] <= free


def test_fractional_accumulation_steps_name_nearest_plans():
    with pytest.raises(ValueError, match=r"K = 1\.28\. The nearest plans") as refusal:
        plan_accumulation(3072, 240, 10)
    assert [(one.accumulation_steps, one.micro_batch, one.effective_batch) for one in nearest_plans(3072, 240, 10)] == [
        *((2, 6, 2880), (2, 7, 3360), (1, 10, 2400), (2, 10, 4800))
    ]
    assert "accumulation_steps=2 x 240 ranks x micro-batch 6 = 2880" in str(refusal.value)


def test_learning_rates_and_what_is_no_number_are_refused():
    assert scale_learning_rate(0.1, 4) == 0.4
    assert scale_learning_rate(0.1, 4, rule="sqrt") == 0.2
    assert scale_learning_rate(0.1, 4, rule="none") == 0.1
    rows = [
        ((0, 4), "above 0"),
        ((0.1, 0), "above 0"),
        ((0.1, float("inf")), "above 0"),
        ((float("nan"), 2), "above 0"),
    ]
    rows.append(((0.1, 4, "cubic"), "rule must be"))
    assert unrefused(ValueError, lambda arguments: scale_learning_rate(*arguments), rows) == {}
    numbers = [(0, 1, 1), (8, 0, 1), (8, 1, -1), (8.0, 1, 1), (True, 1, 1)]
    rows = [(row, "must be an int of at least 1") for row in numbers]
    assert unrefused(ValueError, lambda arguments: plan_accumulation(*arguments), rows) == {}


def progress(k, cycles, micro_step=0, *, epoch=0, batch=None):
    first = k * cycles
    delivered = first + micro_step
    return Progress(
        epoch=epoch,
        batch=delivered if batch is None else batch,
        cycles=cycles,
        updates=cycles,
        micro_step=micro_step,
        accumulation_steps=k,
        batches_delivered=delivered,
        cycle_first_batch=first,
    )


@st.composite
def folds(draw):
    """A world, another one, and a progress that folds from the first onto the second."""
    ranks, onto = draw(WORLDS), draw(WORLDS)
    unit = onto // math.gcd(ranks, onto)
    k = unit * draw(st.integers(1, 6))
    micro_step = unit * draw(st.integers(0, k // unit - 1))
    return ranks, onto, progress(k, draw(st.integers(0, 9)), micro_step)


def test_fold_converts_every_micro_batch_count():
    """Every count of micro-batches is converted so that the count over all ranks stays."""
    folded = fold_progress(progress(4, cycles=3, micro_step=2, epoch=1, batch=6), 4, 2)
    expected = {"epoch": 1, "batch": 12, "cycles": 3, "updates": 3, "micro_step": 4, "accumulation_steps": 8}
    assert folded == Progress(**expected, batches_delivered=28, cycle_first_batch=24)


@given(folds())
def test_folding_back_is_identity_and_shares_keep_sums(fold):
    """And shares give every new rank its micro-steps."""
    ranks, onto, before = fold
    after = fold_progress(before, ranks, onto)
    assert (after.epoch, after.cycles, after.updates) == (before.epoch, before.cycles, before.updates)
    assert ranks * before.batches_delivered == onto * after.batches_delivered
    assert after.at_boundary == before.at_boundary
    assert fold_progress(after, onto, ranks) == before
    taken = [Fraction(0)] * ranks
    for rank in range(onto):
        of_rank = shares(ranks, onto, rank)
        assert [old for old, _ in of_rank] == sorted({old for old, _ in of_rank})
        assert all(0 < share <= 1 for _, share in of_rank)
        assert sum(share * before.micro_step for _, share in of_rank) == after.micro_step
        for old, share in of_rank:
            taken[old] += share
    assert taken == [1] * ranks


def test_shares():
    third = Fraction(1, 3)
    assert [shares(2, 1, 0)] == [[(0, 1), (1, 1)]]
    assert [shares(1, 2, rank) for rank in (0, 1)] == [[(0, Fraction(1, 2))]] * 2
    assert [shares(4, 2, rank) for rank in (0, 1)] == [[(0, 1), (1, 1)], [(2, 1), (3, 1)]]
    assert [shares(2, 3, rank) for rank in range(3)] == [[(0, 2 * third)], [(0, third), (1, third)], [(1, 2 * third)]]
    assert shares(3, 3, 1) == [(1, 1)]


def test_uneven_fold_is_refused_with_choices():
    align = 'the old number of ranks and Saving(mid_cycle="align"), which saves at boundaries, or "rewind"'
    rows = [
        (
            (progress(4, 5), 4, 3),
            "a run of 4 ranks with accumulation_steps=4 cannot continue with 3 here: an update is made of 4 x 4 = 16 "
            "micro-batches, not divisible by 3. It can continue with 1, 2, 4, 8, 16 ranks; or start with 4 ranks "
            "as before",
        ),
        (
            (progress(4, 5, 1), 4, 8),
            "the running cycle has trained 4 x 1 = 4 micro-batches, not divisible by 8. It can continue with "
            f"1, 2, 4 ranks; or, from a checkpoint at a boundary, with 1, 2, 4, 8, 16 ranks: start with {align}",
        ),
        ((progress(1, 7), 1, 2), "1 x 1 = 1 micro-batches, not divisible by 2. It can continue with 1"),
        # A cycle that was flushed at an epoch's end.
        (
            (progress(4, 0).model_copy(update={"batches_delivered": 5, "cycle_first_batch": 5}), 1, 2),
            "there were 1 x 5 = 5",
        ),
        # An epoch that ended in the middle of what the new ranks take together.
        ((progress(4, 4, epoch=1, batch=1), 1, 2), "there were 1 x 1 = 1"),
        # The steps of all cycles have to fold.
        (
            (progress(4, 1), 1, 4, [8, 6]),
            "1 x 6 = 6 micro-batches, not divisible by 4. It can continue with 1, 2 ranks",
        ),
    ]
    rows = [(arguments, re.escape(message)) for arguments, message in rows]
    rows.append(((progress(5040, 1), 2, 13), r"with 5, 6, .* 20 ranks \(and \d+ other numbers\)"))
    assert unrefused(ResumeError, lambda arguments: fold_progress(*arguments), rows) == {}
    assert fold_progress(progress(4, 1), 1, 4, steps=[8]).accumulation_steps == 1


def test_schedule_folds_whole_and_keeps_its_original():
    original = AccumulationSchedule({0: 2, 10: 4})
    folded = original.folded(4, 2)
    assert folded.recorded() == [[0, 4], [10, 8]]
    assert folded.folded(2, 8).recorded() == [[0, 1], [10, 2]]
    assert original.given is folded.given is folded.folded(2, 8).given is original
    with pytest.raises(ValueError, match="1 ranks x accumulation_steps=2 = 2 micro-batches"):
        original.folded(1, 4)


def test_a_function_folds_at_each_use():
    folded = AccumulationSchedule(lambda step: 4 if step < 3 else 3).folded(2, 4)
    assert [folded.at(step) for step in (0, 2)] == [2, 2]
    assert folded.recorded() is None
    with pytest.raises(ValueError, match=r"2 ranks x accumulation_steps=3 = 6 micro-batches .* only by 1, 2,"):
        folded.at(3)
