"""plan_accumulation and scale_learning_rate: from the wished-for batch to K."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.accumulation import AccumulationPlan, nearest_plans, plan_accumulation, scale_learning_rate

positive = st.integers(1, 400)


@given(positive, positive, positive)
def test_a_plan_multiplies_out(steps, world_size, micro_batch):
    plan = plan_accumulation(steps * world_size * micro_batch, world_size, micro_batch)
    assert plan == AccumulationPlan(steps, world_size, micro_batch)
    assert plan.effective_batch == steps * world_size * micro_batch


@given(st.integers(1, 10_000), positive, positive)
def test_plan_is_exact_or_names_nearest_plans(global_batch, world_size, micro_batch):
    near = nearest_plans(global_batch, world_size, micro_batch)
    if global_batch % (world_size * micro_batch):
        with pytest.raises(ValueError, match="nearest plans") as refusal:
            plan_accumulation(global_batch, world_size, micro_batch)
        assert all(str(one) in str(refusal.value) for one in near)
    else:
        assert plan_accumulation(global_batch, world_size, micro_batch).effective_batch == global_batch
        assert near[0].effective_batch == global_batch
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
        (2, 6, 2880),
        (2, 7, 3360),
        (1, 10, 2400),
        (2, 10, 4800),
    ]
    assert "accumulation_steps=2 x 240 ranks x micro-batch 6 = 2880" in str(refusal.value)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (8, 0, 1), (8, 1, -1), (8.0, 1, 1), (True, 1, 1)])
def test_what_is_no_positive_int_is_refused(numbers):
    with pytest.raises(ValueError, match="must be an int of at least 1"):
        plan_accumulation(*numbers)


def test_learning_rates():
    assert scale_learning_rate(0.1, 4) == 0.4
    assert scale_learning_rate(0.1, 4, rule="sqrt") == 0.2
    assert scale_learning_rate(0.1, 4, rule="none") == 0.1


@pytest.mark.parametrize("arguments", [(0, 4), (0.1, 0), (0.1, float("inf")), (float("nan"), 2), (0.1, 4, "cubic")])
def test_what_is_no_learning_rate_is_refused(arguments):
    with pytest.raises(ValueError, match=r"above 0|rule must be"):
        scale_learning_rate(*arguments)
