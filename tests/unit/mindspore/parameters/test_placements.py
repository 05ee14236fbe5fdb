"""Where the parameters of a training lie in a job of many ranks; asked here in a job of one."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn
from support.training import Mlp, accumulation_cell, adam, samples, sums_prefix

from ckptkit.core.placement import Box
from ckptkit.core.process_group import ALONE
from ckptkit.manager.options import Ranks
from ckptkit.mindspore.state.manager import StateManager


def placements(state):
    return {leaf.name: leaf.spec.placement for leaf in state.capture().leaves}


def test_placements():
    """Replicated is only what the ranks agree on by construction."""
    cell = accumulation_cell(3, loss_scaler=amp.DynamicLossScaler(1024, 2, 3)).set_train()
    cell(*map(ms.Tensor, samples(4).values()))
    found = placements(StateManager(cell))
    scale = {one.name for one in cell.loss_scale.get_parameters()}
    assert len(scale) > 1
    assert {name for name, one in found.items() if one == "replicated"} == scale | {
        one.name for one in cell.optimizer.get_parameters()
    }
    table = {
        "hidden.weight": "replicated",
        "norm.gamma": "replicated",
        "moment1.hidden.weight": "replicated",
        "global_step": "replicated",
        "norm.moving_mean": "per_rank",
        "norm.moving_variance": "per_rank",
        f"{sums_prefix()}hidden.weight": "per_rank",
        f"{sums_prefix()}divisor": "per_rank",
    }
    assert {name: found[name] for name in table} == table
    state_arrays = {leaf.name for leaf in StateManager(cell).capture().leaves if leaf.role == "state"}
    assert state_arrays
    assert {found[name] for name in state_arrays} == {"per_rank"}
    network = Mlp()
    found = placements(StateManager(nn.TrainOneStepCell(network, adam(network.trainable_params()))))
    assert (found["moment1.hidden.weight"], found["norm.moving_mean"]) == ("replicated", "per_rank")


def test_what_is_frozen_is_replicated_until_it_changes():
    cell = accumulation_cell(3)
    cell.network.table = ms.Parameter(np.ones(3, np.float32), name="table", requires_grad=False)
    assert placements(StateManager(cell))["table"] == "per_rank"
    state = StateManager(cell, frozen="table")
    assert placements(state)["table"] == "replicated"
    state._sources.parameters.demote(["table", "hidden.weight"])
    found = placements(state)
    assert found["table"] == "per_rank"
    assert found["hidden.weight"] == "replicated"  # the optimizer's all the same


def test_placement_by_hand():
    box = Box((16, 6), (8, 0))
    by_hand = {"hidden.weight": box, "norm.moving_mean": "replicated", "norm.gamma": "per_rank"}
    state = StateManager(accumulation_cell(3), ranks=Ranks(placement=by_hand.get))
    first, second = ([leaf.spec for leaf in state.capture().leaves if leaf.role != "state"] for _ in range(2))
    found = {spec.name: spec.placement for spec in first}
    assert {name: found[name] for name in by_hand} == by_hand
    assert found["out.weight"] == "replicated"
    assert all(one is other for one, other in zip(first, second, strict=True)), "the plan compares them by identity"


def test_a_placement_that_does_not_fit_is_refused():
    cell = accumulation_cell(3)
    for box in (Box((16,), (0,)), Box((8, 6), (1, 0)), Box((7, 6), (0, 0))):
        with pytest.raises(ValueError, match=r"hidden\.weight, but its shape \(8, 6\)"):
            StateManager(cell, ranks=Ranks(placement={"hidden.weight": box}.get))
    with pytest.raises(TypeError, match=r"'everywhere' for hidden\.weight"):
        StateManager(cell, ranks=Ranks(placement={"hidden.weight": "everywhere"}.get))
    assert StateManager(cell).world is ALONE
