"""A script that computes otherwise than the saved run is told so before anything is restored, with both values."""

import functools
import re

import mindspore as ms
import pytest
from mindspore import nn, ops
from support.memory import contents_of
from support.training import begin_process, rng_digest

import ckptkit as ck
from ckptkit.errors import ResumeError

ONES = ops.ones((4, 8)), ops.ones((4, 1))
INPUTS = "the types of its inputs"


class Noisy(nn.learning_rate_schedule.LearningRateSchedule):
    calls = 0

    def construct(self, step):
        self.calls += 1
        return 0.1 + 0 * ops.rand(1)


CHANGES = {
    "plain": lambda network: network,
    "half": lambda network: network.to_float(ms.float16),
    "head": lambda network: (network, network[2].to_float(ms.float16))[0],
    "o1": lambda network: ms.amp.auto_mixed_precision(network, "O1"),
    "deterministic": lambda network: (network, ms.set_context(deterministic="ON"))[0],
}


def training(change="plain", rate=0.1, **options):
    network = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, 1))
    loss = nn.WithLossCell(CHANGES[change](network), nn.MSELoss())
    cell = ck.AccumulationTrainCell(loss, nn.Momentum(loss.trainable_params(), rate, 0.9), 1).set_train()
    return cell, ck.StateManager(cell, **options)


@pytest.fixture
def resume(tmp_path, monkeypatch, caplog):
    """Trains two updates of the first training, and gives the log of what restores them into the second one."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes a rewritten network there

    @functools.cache
    def saved(first, mode):
        begin_process(mode=mode)
        cell, state = training(*first)
        state.begin("runs/numerics")
        for _ in range(2):
            cell(*ONES)
        return contents_of(state.capture(), "a000001-c0000000002-m0000")

    def resume(first, second=None, mode="pynative", **options):
        contents = saved(first, mode)
        begin_process(mode=mode)
        caplog.clear()
        cell, state = training(*(first if second is None else second), **options)
        try:
            state.apply(contents)
        except ResumeError:
            assert cell.counters.updates == 0
            raise
        return caplog.text

    return resume


def test_other_compute_type_is_named(resume):
    where = "network._backbone"
    for first, second, said in [
        ("plain", "half", f"{where} computes in Float16, in the saved run in {INPUTS}."),
        ("plain", "head", f"{where}.2 computes in Float16, in the saved run in {INPUTS}."),
        ("half", "head", f"{where} computes in {INPUTS}, in the saved run in Float16."),
        ("plain", "o1", f"{where} computes in mixed types, in the saved run in {INPUTS}."),
    ]:
        assert said in resume((first,), (second,))
    for change in ("half", "head", "o1"):
        assert "computes in" not in resume((change,))
    with pytest.raises(ResumeError, match="computes in Float16"):
        resume(("plain",), ("half",), strict=True)


def test_other_setting_of_the_process_is_named(resume):
    try:
        assert "deterministic is ON, in the saved run OFF" in resume(("plain",), ("deterministic",))
    finally:
        ms.set_context(deterministic="OFF")


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_other_rate_of_a_schedule_is_named(resume, mode):
    """Of the next update, or only of the one after it."""
    for now, other, said in [
        (nn.PolynomialDecayLR(0.1, 0.0, 10, 1.0), nn.PolynomialDecayLR(0.1, 0.0, 20, 1.0), "2 is 0.09, in .* 0.08"),
        (*(nn.ExponentialDecayLR(0.1, 0.5, steps, is_stair=True) for steps in (3, 4)), "3 is 0.1, in .* 0.05"),
    ]:
        assert "learning rate" not in resume(("plain", now), mode=mode)
        assert re.search(rf"the learning rate of update {said}\.", resume(("plain", now), ("plain", other), mode=mode))


def test_asking_a_schedule_changes_nothing():
    begin_process()
    cell, state = training(rate=Noisy())
    cell(*ONES)
    before, calls = rng_digest(), cell.optimizer.learning_rate.calls
    assert state.capture().state["train"] is not None
    assert (rng_digest(), cell.optimizer.learning_rate.calls) == (before, calls)
