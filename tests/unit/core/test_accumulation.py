"""Accumulation steps K: as a function of the optimizer step, for a batch size, and for another number of ranks."""

import itertools
import math
import re
from dataclasses import replace
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


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 9)), st.integers(1, 9), st.integers(0, 60))
def test_latest_begun_schedule_entry_is_in_force(later, first, step):
    entries = {**later, 0: first}
    schedule = AccumulationSchedule(entries)
    assert schedule.at(step) == entries[max(at for at in entries if at <= step)]
    assert schedule.recorded() == [list(pair) for pair in sorted(entries.items())]


def test_function_schedule_is_called_and_no_schedule_refused():
    schedule = AccumulationSchedule(lambda step: 1 + step // 2 if step < 9 else None)
    assert [schedule.at(step) for step in (0, 1, 2, 5)] == [1, 1, 2, 3]
    assert schedule.recorded() is None
    with pytest.raises(ValueError, match=r"accumulation_steps\(9\) must be an int of at least 1, got None"):
        schedule.at(9)
    assert AccumulationSchedule(3).recorded() == [[0, 3]]
    schedules = [0, -1, True, 2.0, "4", None, {}, {1: 2}, {0: 0}, {0: 1, -3: 2}, {0: 1, 1.5: 2}, lambda step: step]
    rows = [(steps, "accumulation_steps|a step of the schedule") for steps in schedules]
    assert unrefused(ValueError, AccumulationSchedule, rows) == {}


def test_plan_is_exact_or_names_nearest_plans():
    assert plan_accumulation(96, 4, 8) == nearest_plans(96, 4, 8)[0] == AccumulationPlan(3, 4, 8)
    with pytest.raises(ValueError, match=r"(?s)K = 1\.28\. .*=2 x 240 ranks x micro-batch 6 = 2880") as refusal:
        plan_accumulation(3072, 240, 10)
    near = nearest_plans(3072, 240, 10)
    assert [(plan.accumulation_steps, plan.micro_batch) for plan in near] == [(2, 6), (2, 7), (1, 10), (2, 10)]
    assert [plan.effective_batch for plan in near] == [2880, 3360, 2400, 4800]
    assert all(str(plan) in str(refusal.value) for plan in near)
    assert nearest_plans(1, 4, 8) == (AccumulationPlan(1, 4, 1), AccumulationPlan(1, 4, 8))  # fewer than a rank each


def test_learning_rates_and_what_is_no_number_are_refused():
    assert scale_learning_rate(0.1, 4) == 0.4
    assert scale_learning_rate(0.1, 4, rule="sqrt") == 0.2
    assert scale_learning_rate(0.1, 4, rule="none") == 0.1
    rows = [((base, k), "above 0") for base, k in ((0, 4), (0.1, 0), (0.1, float("inf")), (float("nan"), 2))]
    rows.append(((0.1, 4, "cubic"), "rule must be"))
    assert unrefused(ValueError, lambda arguments: scale_learning_rate(*arguments), rows) == {}
    numbers = [(0, 1, 1), (8, 0, 1), (8, 1, -1), (8.0, 1, 1), (True, 1, 1)]
    rows = [(row, "must be an int of at least 1") for row in numbers]
    assert unrefused(ValueError, lambda arguments: plan_accumulation(*arguments), rows) == {}


def progress(k, cycles, micro_step=0, *, epoch=0, batch=None):
    first, delivered = k * cycles, k * cycles + micro_step
    return Progress(
        **{"epoch": epoch, "batch": delivered if batch is None else batch, "cycles": cycles, "updates": cycles},
        **{"micro_step": micro_step, "accumulation_steps": k, "batches_delivered": delivered},
        cycle_first_batch=first,
    )


def test_folding_back_is_identity_and_shares_keep_sums():
    folded = fold_progress(progress(4, cycles=3, micro_step=2, epoch=1, batch=6), 4, 2)
    expected = {"epoch": 1, "batch": 12, "cycles": 3, "updates": 3, "micro_step": 4, "accumulation_steps": 8}
    assert folded == Progress(**expected, batches_delivered=28, cycle_first_batch=24)
    for ranks, onto in itertools.product(range(1, 10), repeat=2):
        unit = onto // math.gcd(ranks, onto)
        before = progress(3 * unit, 2, 2 * unit)
        after = fold_progress(before, ranks, onto)
        assert fold_progress(after, onto, ranks) == before
        taken = [Fraction(0)] * ranks
        for rank in range(onto):
            assert sum(share * before.micro_step for _, share in shares(ranks, onto, rank)) == after.micro_step
            for old, share in shares(ranks, onto, rank):
                taken[old] += share
        assert taken == [1] * ranks
    third = Fraction(1, 3)
    assert [shares(1, 2, rank) for rank in (0, 1)] == [[(0, Fraction(1, 2))]] * 2
    assert [shares(4, 2, rank) for rank in (0, 1)] == [[(0, 1), (1, 1)], [(2, 1), (3, 1)]]
    assert [shares(2, 3, rank) for rank in range(3)] == [[(0, 2 * third)], [(0, third), (1, third)], [(1, 2 * third)]]


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
            (replace(progress(4, 0), batches_delivered=5, cycle_first_batch=5), 1, 2),
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
    folded = AccumulationSchedule(lambda step: 4 if step < 3 else 3).folded(2, 4)  # a function at each use
    assert [folded.at(step) for step in (0, 2)] == [2, 2]
    assert folded.recorded() is None
    with pytest.raises(ValueError, match=r"2 ranks x accumulation_steps=3 = 6 micro-batches .* only by 1, 2,"):
        folded.at(3)
