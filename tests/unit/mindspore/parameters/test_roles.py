"""What the parameters of a training are for, where they lie in a job of many ranks, and which were replaced."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn
from mindspore.nn.wrap.cell_wrapper import GradAccumulationCell, _TrainGradAccuStepCell
from mindspore.parallel.nn import GradAccumulation
from support.training import Mlp, accumulation_cell, adam, samples, sums_prefix

import ckptkit as ck
from ckptkit.core.placement import Box
from ckptkit.core.process_group import ALONE
from ckptkit.errors import ResumeError
from ckptkit.manager.options import Ranks
from ckptkit.mindspore.parameters.parameters import CellChanges, KeptParameters
from ckptkit.mindspore.parameters.roles import warn_if_no_weight_changes
from ckptkit.mindspore.state.manager import StateManager


def placements(state):
    return {leaf.name: leaf.spec.placement for leaf in state.capture().leaves}


def test_placements():
    """Replicated is only what the ranks agree on by construction."""
    cell = accumulation_cell(3, loss_scaler=amp.DynamicLossScaler(1024, 2, 3)).set_train()
    cell(*map(ms.Tensor, samples(4).values()))
    leaves = {leaf.name: leaf for leaf in StateManager(cell).capture().leaves}
    scale = {one.name for one in cell.loss_scale.get_parameters()}
    assert len(scale) > 1
    replicated = {name for name, leaf in leaves.items() if leaf.spec.placement == "replicated"}
    assert replicated == scale | {one.name for one in cell.optimizer.get_parameters()}
    assert {"hidden.weight", "norm.gamma", "moment1.hidden.weight", "global_step"} <= replicated
    per_rank = {name for name, leaf in leaves.items() if leaf.spec.placement == "per_rank"}
    assert {"norm.moving_mean", f"{sums_prefix()}hidden.weight", f"{sums_prefix()}divisor"} <= per_rank
    assert {leaf.name for leaf in leaves.values() if leaf.role == "state"} <= per_rank
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


def parameter(*shape):
    return ms.Parameter(np.zeros(shape, np.float32), name="new")


CHANGES = {
    "replaced parameter": lambda cell: setattr(cell[1][0], "weight", parameter(1, 3)),
    "added parameter": lambda cell: setattr(cell[1], "scale", parameter(1)),
    "replaced cell": lambda cell: cell[1].__setitem__(0, nn.Dense(3, 1)),
    "appended cell": lambda cell: cell[1].append(nn.Dense(1, 1)),
    "deleted cell": lambda cell: cell.__delitem__(1),
}


def test_other_objects_in_cells_are_noticed():
    for name, change in CHANGES.items():
        cell = nn.SequentialCell(nn.Dense(2, 3), nn.SequentialCell(nn.Dense(3, 1)))
        kept = KeptParameters([cell], "it")
        cell[0].weight.set_data(ms.Tensor(np.ones((3, 2), np.float32)))
        cell.set_train(True)
        cell.append(nn.Tanh())
        kept.refuse_replaced()
        slots = CellChanges([cell])
        assert not slots.are_changed(), name
        change(cell)
        assert slots.are_changed(), name
        assert not CellChanges([cell]).are_changed(), name
        with pytest.raises(ResumeError, match=r"parameters were replaced or added after .*: it/"):
            kept.refuse_replaced()


@pytest.mark.parametrize("wrap", [GradAccumulation, GradAccumulationCell])
def test_accumulation_that_never_updates_is_told(root, shown, wrap):
    network = nn.WithLossCell(nn.Dense(4, 1), nn.MSELoss())
    cell = _TrainGradAccuStepCell(wrap(network, 2), nn.Momentum(network.trainable_params(), 0.1, 0.9)).set_train()
    before = [one.asnumpy().copy() for one in network.trainable_params()]
    state = ck.StateManager(cell, strict=True, training=ck.Training(ignore=["*"]))
    with ck.CheckpointManager(root) as manager:
        manager.restore(state)
        cell(ms.Tensor([[1.0] * 4] * 2), ms.Tensor([[1.0]] * 2))
        manager.save_final(state)
    assert all((one.asnumpy() == was).all() for one, was in zip(network.trainable_params(), before, strict=True))
    assert "this training changes no weight" in shown()
    assert "bit-exact" not in shown()


def test_accumulation_that_updates_elsewhere_is_not_told(monkeypatch, shown):
    for asked, answer in (("get_auto_parallel_context", "data_parallel"), ("get_context", "Ascend")):
        with monkeypatch.context() as patched:
            patched.setattr(ms, asked, lambda name, answer=answer: answer)
            warn_if_no_weight_changes(["net.weight", "accu_grads.net.weight"])
        assert shown() == "", answer
