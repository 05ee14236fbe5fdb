"""A script that computes otherwise than the saved run is told so before anything is restored, with both values."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import nn, ops
from support.training import begin_process, rng_digest

import ckptkit as ck
from ckptkit.errors import ResumeError

ONES = ops.ones((4, 8)), ops.ones((4, 1))


class Noisy(nn.learning_rate_schedule.LearningRateSchedule):
    """A schedule of the user's that draws, and counts its calls."""

    calls = 0

    def construct(self, step):
        self.calls += 1
        return 0.1 + 0 * ops.rand(1)


def half(network):
    return network.to_float(ms.float16)


def head(network):
    network[2].to_float(ms.float16)
    return network


def level_o1(network):
    return ms.amp.auto_mixed_precision(network, "O1")


def training(change=lambda network: network, rate=0.1, **options):
    network = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
    loss = nn.WithLossCell(change(network), nn.MSELoss())
    cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), rate, 0.9), 1).set_train()
    return cell, ck.StateManager(cell, **options)


@pytest.fixture
def saved(root, monkeypatch):
    """Returns what trains two updates and saves."""
    monkeypatch.chdir(root.parent)  # MindSpore writes a rewritten network there

    def save(*args):
        cell, state = training(*args)
        with ck.CheckpointManager(root) as manager:
            manager.restore(state)
            for _ in range(2):
                cell(*ONES)
            manager.save(state).result()

    return save


def restored(root, *args, **options):
    begin_process()
    with ck.CheckpointManager(root) as manager:
        cell, state = training(*args, **options)
        manager.restore(state)
    return cell


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (half, "network._backbone computes in Float16, in the saved run in the types of its inputs."),
        (head, "network._backbone.2 computes in Float16, in the saved run in the types of its inputs."),
        (level_o1, "network._backbone computes in mixed types, in the saved run in the types of its inputs."),
    ],
)
def test_other_compute_type_is_named(root, saved, caplog, change, said):
    begin_process()
    saved()
    restored(root, change)
    assert said in caplog.text
    begin_process()
    saved(change)
    caplog.clear()
    restored(root, change)
    assert "computes in" not in caplog.text


def test_type_of_a_part_is_told_by_what_is_around_it(root, saved, caplog):
    begin_process()
    saved(half)
    restored(root, head)
    assert "network._backbone computes in the types of its inputs, in the saved run in Float16." in caplog.text


def test_strict_refuses_before_anything_is_restored(root, saved):
    begin_process()
    saved()
    begin_process()
    with ck.CheckpointManager(root) as manager:
        cell, state = training(half, strict=True)
        with pytest.raises(ResumeError, match="computes in Float16"):
            manager.restore(state)
    assert cell.counters.updates == 0


def test_other_setting_of_the_process_is_named(root, saved, caplog):
    begin_process()
    saved()
    try:
        ms.set_context(deterministic="ON")
        restored(root)
    finally:
        ms.set_context(deterministic="OFF")
    assert "deterministic is ON, in the saved run OFF" in caplog.text


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_other_rate_of_a_schedule_is_named(root, saved, caplog, mode):
    begin_process(mode=mode)
    saved(lambda network: network, nn.PolynomialDecayLR(0.1, 0.0, 10, 1.0))
    begin_process(mode=mode)
    with ck.CheckpointManager(root) as manager:
        manager.restore(training(rate=nn.PolynomialDecayLR(0.1, 0.0, 10, 1.0))[1])
    assert "learning rate" not in caplog.text
    with ck.CheckpointManager(root) as manager:
        manager.restore(training(rate=nn.PolynomialDecayLR(0.1, 0.0, 20, 1.0))[1])
    assert "the learning rate of update 2 is 0.09, in the saved run 0.08." in caplog.text


def test_asking_a_schedule_changes_nothing():
    begin_process()
    cell, state = training(rate=Noisy())
    cell(*ONES)
    before, calls = rng_digest(), cell.optimizer.learning_rate.calls
    assert state.capture().state["train"] is not None
    assert (rng_digest(), cell.optimizer.learning_rate.calls) == (before, calls)
