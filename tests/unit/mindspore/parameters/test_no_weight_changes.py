"""A training that changes no weight says so, and not that its resume will not be exact: that it is."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import nn
from mindspore.nn.wrap.cell_wrapper import GradAccumulationCell, _TrainGradAccuStepCell
from mindspore.parallel.nn import GradAccumulation

import ckptkit as ck
from ckptkit.mindspore.parameters.roles import warn_if_no_weight_changes


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
