from __future__ import annotations

import itertools
import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.policies import AnyKeep, AnySave, Keepable, KeepBest, KeepEvery, KeepLatest, SaveEvery
from ckptkit.core.progress import Progress

SECOND = timedelta(seconds=1)


def progress_at(delivered: int, k: int = 4, *, ended_before: int = 0) -> Progress:
    cycles, micro_step = divmod(delivered, k)
    return Progress(
        epoch=0,
        batch=delivered,
        cycles=cycles + ended_before,
        updates=cycles,
        micro_step=micro_step,
        accumulation_steps=k,
        batches_delivered=delivered,
        cycle_first_batch=delivered - micro_step,
    )


def due_at(policy, last: int, *, k: int = 4) -> list[int]:
    return [n for n in range(last + 1) if policy.due(progress_at(n, k), timedelta(0))]


@pytest.mark.parametrize(
    ("policy", "expected_micro_steps"),
    [
        (SaveEvery(optimizer_steps=1), [4, 8, 12, 16, 20, 24]),
        (SaveEvery(optimizer_steps=2), [8, 16, 24]),
        (SaveEvery(optimizer_steps=5), [20]),
        (SaveEvery(optimizer_steps=7), []),
        (SaveEvery(micro_steps=1), list(range(1, 25))),
        (SaveEvery(micro_steps=6), [6, 12, 18, 24]),
        (SaveEvery(micro_steps=100), []),
        (SaveEvery(optimizer_steps=3) | SaveEvery(micro_steps=9), [9, 12, 18, 24]),
        (SaveEvery(optimizer_steps=5) | SaveEvery(micro_steps=9) | SaveEvery(micro_steps=11), [9, 11, 18, 20, 22]),
        (SaveEvery(interval=SECOND), []),
        (SaveEvery(interval=SECOND) | SaveEvery(optimizer_steps=3), [12, 24]),
    ],
)
def test_when_a_save_is_due(policy, expected_micro_steps):
    assert due_at(policy, 24) == expected_micro_steps


def test_cycles_count_and_not_updates():
    """Skipped updates do not hold back a save."""
    progress = progress_at(8, ended_before=3)
    assert (progress.updates, progress.cycles) == (2, 5)
    assert SaveEvery(optimizer_steps=5).due(progress, timedelta(0))
    assert not SaveEvery(optimizer_steps=2).due(progress, timedelta(0))


@pytest.mark.parametrize(
    ("elapsed", "due"),
    [
        (timedelta(0), False),
        (timedelta(minutes=10) - timedelta(microseconds=1), False),
        (timedelta(minutes=10), True),
        (timedelta(days=40), True),
    ],
)
def test_interval_is_due_at_first_micro_step_after(elapsed, due):
    policy = SaveEvery(interval=timedelta(minutes=10))
    assert policy.due(progress_at(3), elapsed) is due
    assert policy.due(progress_at(4), elapsed) is due
    assert (policy | SaveEvery(optimizer_steps=10**6)).due(progress_at(3), elapsed) is due


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of optimizer_steps, micro_steps, interval; got 0"),
        ({"optimizer_steps": 1, "micro_steps": 1}, "exactly one .* got 2"),
        ({"optimizer_steps": 1, "micro_steps": 1, "interval": SECOND}, "exactly one .* got 3"),
        ({"optimizer_steps": 0}, r"SaveEvery\.optimizer_steps .* at least 1, got 0"),
        ({"optimizer_steps": -3}, r"SaveEvery\.optimizer_steps .* got -3"),
        ({"optimizer_steps": True}, r"SaveEvery\.optimizer_steps .* got True"),
        ({"micro_steps": 0}, r"SaveEvery\.micro_steps .* got 0"),
        ({"micro_steps": 1.0}, r"SaveEvery\.micro_steps .* got 1\.0"),
        ({"micro_steps": "2"}, r"SaveEvery\.micro_steps .* got '2'"),
        ({"interval": timedelta(0)}, r"SaveEvery\.interval must be a positive timedelta"),
        ({"interval": 10.0}, r"SaveEvery\.interval must be a positive timedelta, got 10\.0"),
        ({"interval": -SECOND}, r"SaveEvery\.interval must be a positive timedelta"),
    ],
)
def test_save_every_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        SaveEvery(**arguments)


def keepables(*rows) -> list[Keepable]:
    """Rows of (cycles, micro_step, metrics), oldest first; named by their place."""
    return [
        Keepable(str(place), cycles, micro_step, dict(metrics or {}))
        for place, (cycles, micro_step, metrics) in enumerate(rows)
    ]


PLAIN = keepables(*((cycles, 0, None) for cycles in range(1, 9)))
MIXED = keepables((2, 0, None), (2, 3, None), (3, 1, None), (4, 0, None), (6, 0, None), (6, 2, None))
LOSSES = keepables(*((n, 0, {"loss": loss}) for n, loss in enumerate([0.5, 0.2, 0.9, 0.2, 0.7])))
GAPS = keepables(
    (1, 0, {"loss": math.nan}), (2, 0, {}), (3, 0, {"loss": 0.3}), (4, 0, {"acc": 1.0}), (5, 0, {"loss": 0.1})
)
INFINITE = keepables((1, 0, {"loss": math.inf}), (2, 0, {"loss": 1.0}), (3, 0, {"loss": -math.inf}))


@pytest.mark.parametrize(
    ("policy", "checkpoints", "expected_kept"),
    [
        (KeepLatest(1), PLAIN, "7"),
        (KeepLatest(3), PLAIN, "567"),
        (KeepLatest(8), PLAIN, "01234567"),
        (KeepLatest(99), PLAIN, "01234567"),
        (KeepLatest(2), [], ""),
        (KeepEvery(1), PLAIN, "01234567"),
        (KeepEvery(3), PLAIN, "25"),
        (KeepEvery(9), PLAIN, ""),
        (KeepEvery(2), MIXED, "034"),
        (KeepEvery(3), MIXED, "4"),
        (KeepEvery(1), keepables((0, 0, None), (0, 1, None)), ""),
        (KeepEvery(2), [], ""),
        (KeepBest(1, "loss", "min"), LOSSES, "3"),
        (KeepBest(2, "loss", "min"), LOSSES, "13"),
        (KeepBest(3, "loss", "min"), LOSSES, "013"),
        (KeepBest(1, "loss", "max"), LOSSES, "2"),
        (KeepBest(2, "loss", "max"), LOSSES, "24"),
        (KeepBest(4, "loss", "max"), LOSSES, "0234"),
        (KeepBest(9, "loss", "max"), LOSSES, "01234"),
        (KeepBest(1, "loss", "min"), GAPS, "4"),
        (KeepBest(5, "loss", "min"), GAPS, "24"),
        (KeepBest(5, "loss", "max"), GAPS, "24"),
        (KeepBest(1, "absent", "max"), GAPS, ""),
        (KeepBest(1, "loss", "min"), INFINITE, "2"),
        (KeepBest(1, "loss", "max"), INFINITE, "0"),
        (KeepBest(1, "loss", "max"), [], ""),
        (KeepLatest(1) | KeepEvery(4), PLAIN, "37"),
        (KeepLatest(2) | KeepBest(1, "loss", "max"), LOSSES, "234"),
        (KeepBest(1, "loss", "min") | KeepBest(1, "loss", "max"), LOSSES, "23"),
        (KeepEvery(2) | KeepLatest(1) | KeepEvery(3), PLAIN, "12357"),
    ],
)
def test_what_is_kept(policy, checkpoints, expected_kept):
    assert policy.keeps(checkpoints) == frozenset(expected_kept)


def test_ties_go_to_the_newer_in_both_modes():
    equal = keepables(*((n, 0, {"m": 1.0}) for n in range(4)))
    assert KeepBest(2, "m", "max").keeps(equal) == KeepBest(2, "m", "min").keeps(equal) == {"2", "3"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepLatest(0), r"KeepLatest\.n .* got 0"),
        (lambda: KeepLatest(True), r"KeepLatest\.n .* got True"),
        (lambda: KeepLatest(1.5), r"KeepLatest\.n .* got 1\.5"),
        (lambda: KeepEvery(0), r"KeepEvery\.optimizer_steps .* got 0"),
        (lambda: KeepEvery(optimizer_steps="4"), r"KeepEvery\.optimizer_steps .* got '4'"),
        (lambda: KeepBest(0, "loss", "min"), r"KeepBest\.n .* got 0"),
        (lambda: KeepBest(1, "loss", "best"), r"KeepBest\.mode must be 'max' or 'min', got 'best'"),
    ],
)
def test_keep_policies_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("policy", "needs"),
    [
        (KeepLatest(1), False),
        (KeepEvery(1), False),
        (KeepLatest(1) | KeepEvery(1), False),
        (KeepBest(1, "loss", "min"), True),
        (KeepLatest(1) | KeepBest(1, "loss", "min"), True),
    ],
)
def test_only_best_policies_need_metrics(policy, needs):
    assert policy.needs_metrics is needs


KEEPS = st.one_of(
    st.builds(KeepLatest, st.integers(1, 9)),
    st.builds(KeepEvery, st.integers(1, 9)),
    st.builds(KeepBest, st.integers(1, 9), st.sampled_from(["a", "b"]), st.sampled_from(["max", "min"])),
)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(0, 2),
        st.dictionaries(st.sampled_from(["a", "b"]), st.floats(width=16)),
    ),
    max_size=12,
).map(lambda rows: keepables(*rows))


@given(st.lists(KEEPS, min_size=2, max_size=4), ROWS)
def test_a_combination_keeps_the_union_in_any_order(policies, checkpoints):
    union = frozenset().union(*(policy.keeps(checkpoints) for policy in policies))
    for order in itertools.islice(itertools.permutations(policies), 6):
        combined = order[0]
        for policy in order[1:]:
            combined = combined | policy
        assert combined.keeps(checkpoints) == union
    assert union <= {one.name for one in checkpoints}


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6))
def test_combined_save_policies_are_due_when_either_is(a, b, k):
    left, right = SaveEvery(optimizer_steps=a), SaveEvery(micro_steps=b)
    assert due_at(left | right, 40, k=k) == sorted({*due_at(left, 40, k=k), *due_at(right, 40, k=k)})


class Sundays:
    """A policy of the user's own, which says nothing about clocks."""

    def due(self, progress, since_last_save):
        return False


@pytest.mark.parametrize(
    ("policy", "by_clock"),
    [
        (SaveEvery(optimizer_steps=2), False),
        (SaveEvery(micro_steps=2), False),
        (SaveEvery(interval=timedelta(hours=1)), True),
        (SaveEvery(optimizer_steps=2) | SaveEvery(micro_steps=5), False),
        (SaveEvery(optimizer_steps=2) | SaveEvery(interval=timedelta(hours=1)), True),
        (SaveEvery(optimizer_steps=2) | Sundays(), True),
    ],
)
def test_what_may_look_at_a_clock_says_so(policy, by_clock):
    """Ranks have to agree on it then."""
    assert policy.by_clock is by_clock


def test_policies_are_values():
    assert SaveEvery(optimizer_steps=3) == SaveEvery(optimizer_steps=3) != SaveEvery(micro_steps=3)
    assert {KeepLatest(3), KeepLatest(3)} == {KeepLatest(3)}
    assert isinstance(SaveEvery(micro_steps=1) | SaveEvery(micro_steps=2), AnySave)
    assert isinstance(KeepLatest(1) | KeepEvery(2), AnyKeep)
    assert (KeepLatest(1) | KeepEvery(2)) == (KeepLatest(1) | KeepEvery(2))
