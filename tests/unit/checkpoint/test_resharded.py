"""folded: each new rank's part of the sums of all old ranks, over contents in memory."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory import MemorySource

from ckptkit.checkpoint.resharded import folded
from ckptkit.core.contents import Contents, TensorInfo
from ckptkit.core.progress import Progress
from ckptkit.errors import CorruptCheckpointError, StateMismatchError

SHAPES = {"accum.a": (3, 2), "accum.divisor": ()}


def progress(k, micro_step):
    counts = {"epoch": 0, "cycles": 0, "updates": 0, "cycle_first_batch": 0}
    return Progress(
        batch=micro_step, micro_step=micro_step, accumulation_steps=k, batches_delivered=micro_step, **counts
    )


def world(sums, k, micro_step):
    """Contents by rank; rank r has the sums ``sums[r]`` and a weight of its own."""
    ranks: list[Contents] = []
    entries = {name: TensorInfo("F32", shape, "accumulators") for name, shape in SHAPES.items()}
    entries["w"] = TensorInfo("F32", (2,), "weights")
    for rank, values in enumerate(sums):
        tensors = {
            "accum.a": np.full((3, 2), values, np.float32),
            "accum.divisor": np.array(micro_step, np.float32),
            "w": np.full(2, rank, np.float32),
        }
        one = Contents("x", progress(k, micro_step), entries, {}, {}, MemorySource(tensors))
        ranks.append(replace(one, rank=rank, world_size=len(sums), of_rank=lambda old: ranks[old]))
    return ranks


@st.composite
def worlds(draw):
    ranks, onto = draw(st.integers(1, 16)), draw(st.integers(1, 16))
    unit = onto // math.gcd(ranks, onto)
    micro_step = unit * draw(st.integers(1, 5))
    sums = draw(st.lists(st.integers(-1000, 1000), min_size=ranks, max_size=ranks))
    return world(sums, micro_step + unit, micro_step), onto, sums


@given(worlds())
def test_fold_keeps_sums_and_sets_divisors(case):
    """The divisor of each new rank is its micro-step."""
    ranks, onto, sums = case
    new = [folded(ranks[rank % len(ranks)], onto, rank) for rank in range(onto)]
    total = np.sum([np.float64(one.tensors["accum.a"]) for one in new], axis=0)
    np.testing.assert_allclose(total, np.full((3, 2), sum(sums)), rtol=1e-5, atol=1e-2)
    for rank, one in enumerate(new):
        assert float(one.tensors["accum.divisor"]) == one.progress.micro_step
        assert one.tensors["w"].tolist() == [rank % len(ranks)] * 2
        for name in SHAPES:
            np.testing.assert_array_equal(one.peek(name), one.tensors[name])


def test_sum_follows_rank_order_and_a_boundary_has_none():
    """A foreign cell's accumulators are stored there, too, and are cleared."""
    # In float32 1e8 + 1 is 1e8: another order would give 1.
    assert folded(world([1, 1e8, -1e8], 2, 1)[0], 1, 0).tensors["accum.a"][0, 0] == 0
    (one, _) = world([1, 2], 2, 1)
    for foreign in ({}, {"accum.count": TensorInfo("I32", (), "accumulators")}):
        plain = replace(one, progress=progress(2, 0), entries={"w": one.entries["w"], **foreign})
        new = folded(plain, 1, 0)
        assert new.source is plain.source
        assert new.progress.accumulation_steps == 4


def test_what_cannot_be_summed_is_refused():
    for changed in ({"dtype": "F64"}, {"placement": "sharded"}, {"placement": "replicated"}):
        one = world([1, 2], 2, 1)[0]
        entries = {**one.entries, "accum.a": replace(one.entries["accum.a"], **changed)}
        with pytest.raises(
            StateMismatchError, match=r"\['accum.a'\] of x cannot be redistributed: .* not per-rank sums"
        ):
            folded(replace(one, entries=entries), 1, 0)
    only = {"accum.a": TensorInfo("F32", (3, 2), "accumulators")}
    for changed in ({"progress": progress(4, 2)}, {"entries": only}):
        ranks = world([1, 2], 2, 1)
        ranks[1] = replace(ranks[1], **changed)
        with pytest.raises(CorruptCheckpointError, match="rank 1 and rank 0 hold different accumulators"):
            folded(ranks[0], 1, 0)
