"""fold: the numbers of a run on N ranks as those of M."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.accumulation import AccumulationSchedule, fold_progress, fold_steps, shares
from ckptkit.core.progress import Progress
from ckptkit.errors import ResumeError

worlds = st.integers(1, 40)


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
    ranks, onto = draw(worlds), draw(worlds)
    unit = onto // math.gcd(ranks, onto)
    k = unit * draw(st.integers(1, 6))
    micro_step = unit * draw(st.integers(0, k // unit - 1))
    return ranks, onto, progress(k, draw(st.integers(0, 9)), micro_step)


def test_fold_converts_every_micro_batch_count():
    """Every count of micro-batches is converted so that the count over all ranks stays."""
    found = fold_progress(progress(4, cycles=3, micro_step=2, epoch=1, batch=6), 4, 2)
    assert found == Progress(
        epoch=1,
        batch=12,
        cycles=3,
        updates=3,
        micro_step=4,
        accumulation_steps=8,
        batches_delivered=28,
        cycle_first_batch=24,
    )


@given(folds())
def test_folding_back_is_identity_and_cycles_stay(fold):
    ranks, onto, before = fold
    after = fold_progress(before, ranks, onto)
    assert (after.epoch, after.cycles, after.updates) == (before.epoch, before.cycles, before.updates)
    assert ranks * before.batches_delivered == onto * after.batches_delivered
    assert after.at_boundary == before.at_boundary
    assert fold_progress(after, onto, ranks) == before


@given(folds())
def test_shares_keep_sums_and_micro_steps(fold):
    """Shares keep the sum over the ranks, and give every new rank its micro-steps."""
    ranks, onto, before = fold
    taken = [Fraction(0)] * ranks
    for rank in range(onto):
        of_rank = shares(ranks, onto, rank)
        assert [old for old, _ in of_rank] == sorted({old for old, _ in of_rank})
        assert all(0 < share <= 1 for _, share in of_rank)
        divisor = sum(share * before.micro_step for _, share in of_rank)
        assert divisor == fold_progress(before, ranks, onto).micro_step
        for old, share in of_rank:
            taken[old] += share
    assert taken == [1] * ranks


@pytest.mark.parametrize(
    ("ranks", "onto", "expected"),
    [
        (2, 1, {0: [(0, 1), (1, 1)]}),
        (1, 2, {0: [(0, Fraction(1, 2))], 1: [(0, Fraction(1, 2))]}),
        (4, 2, {0: [(0, 1), (1, 1)], 1: [(2, 1), (3, 1)]}),
        (2, 3, {0: [(0, Fraction(2, 3))], 1: [(0, Fraction(1, 3)), (1, Fraction(1, 3))], 2: [(1, Fraction(2, 3))]}),
        (3, 3, {1: [(1, 1)]}),
    ],
)
def test_shares(ranks, onto, expected):
    assert {rank: shares(ranks, onto, rank) for rank in expected} == expected


@pytest.mark.parametrize(
    ("state", "ranks", "onto", "message"),
    [
        (
            progress(4, 5),
            4,
            3,
            "a run of 4 ranks with accumulation_steps=4 cannot continue with 3 here: an update is made of 4 x 4 = 16 "
            "micro-batches, not divisible by 3. It can continue with 1, 2, 4, 8, 16 ranks; or start with 4 ranks "
            "as before",
        ),
        (
            progress(4, 5, 1),
            4,
            8,
            "the running cycle has trained 4 x 1 = 4 of its 16 micro-batches, not divisible by 8. It can continue with "
            "1, 2, 4 ranks; or, from a checkpoint at a boundary, with 1, 2, 4, 8, 16 ranks: start with the old number "
            'of ranks and Saving(mid_cycle="align"), which saves at boundaries, or "rewind"',
        ),
        (
            progress(1, 7),
            1,
            2,
            "an update is made of 1 x 1 = 1 micro-batches, not divisible by 2. It can continue with 1",
        ),
        # A cycle that was flushed at an epoch's end.
        (progress(4, 0).model_copy(update={"batches_delivered": 5, "cycle_first_batch": 5}), 1, 2, "unevenly"),
        # An epoch that ended in the middle of what the new ranks take together.
        (progress(4, 4, epoch=1, batch=1), 1, 2, "unevenly"),
    ],
)
def test_uneven_fold_is_refused_with_choices(state, ranks, onto, message):
    with pytest.raises(ResumeError, match=re.escape(message)):
        fold_progress(state, ranks, onto)


def test_the_steps_of_all_cycles_have_to_fold():
    assert fold_progress(progress(4, 1), 1, 4, steps=[8]).accumulation_steps == 1
    with pytest.raises(
        ResumeError, match=r"1 x 6 = 6 micro-batches, not divisible by 4. It can continue with 1, 2 ranks"
    ):
        fold_progress(progress(4, 1), 1, 4, steps=[8, 6])


def test_of_many_choices_those_nearby_are_named():
    with pytest.raises(ResumeError, match=r"with 5, 6, .* 20 ranks \(and \d+ other numbers\)"):
        fold_progress(progress(5040, 1), 2, 13)


@given(worlds, worlds, st.integers(1, 9))
def test_steps_fold_or_name_the_worlds(ranks, onto, k):
    if ranks * k % onto == 0:
        assert fold_steps(k, ranks, onto) * onto == ranks * k
    else:
        with pytest.raises(ValueError, match=f"{ranks * k} micro-batches per update cannot be shared by {onto} ranks"):
            fold_steps(k, ranks, onto)


def test_schedule_folds_whole_and_keeps_its_original():
    given_ = AccumulationSchedule({0: 2, 10: 4})
    folded = given_.folded(4, 2)
    assert folded.recorded() == [[0, 4], [10, 8]]
    assert folded.given is given_
    assert folded.folded(2, 8).recorded() == [[0, 1], [10, 2]]
    assert folded.folded(2, 8).given is given_
    assert given_.given is given_
    with pytest.raises(ValueError, match="1 ranks x accumulation_steps=2 = 2 micro-batches"):
        given_.folded(1, 4)


def test_a_function_folds_at_each_use():
    folded = AccumulationSchedule(lambda step: 4 if step < 3 else 3).folded(2, 4)
    assert [folded.at(step) for step in (0, 2)] == [2, 2]
    assert folded.recorded() is None
    with pytest.raises(
        ValueError, match=r"2 ranks x accumulation_steps=3 = 6 micro-batches .* by 4 ranks, only by 1, 2,"
    ):
        folded.at(3)
