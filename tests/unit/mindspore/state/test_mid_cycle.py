"""``mid_cycle``: what a save between two boundaries holds, and that either way resumes exactly."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback
from support.memory import contents_of
from support.training import (
    SIZE,
    CrashError,
    Dropping,
    Interrupt,
    Job,
    Stop,
    accumulation_cell,
    adam,
    begin_process,
    checkpoints,
    samples,
)

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager
from ckptkit.mindspore.state.sources import CycleStart

EPOCHS = 3
STEPS = EPOCHS * SIZE


class Noisy(nn.Cell):
    """Draws from MindSpore's generator in PYNATIVE, and changes no parameter in its forward pass."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(6, 8)
        self.out = nn.Dense(8, 3)

    def construct(self, x, y):
        return ops.square(self.out(ops.dropout(ops.tanh(self.hidden(x)), p=0.3, training=True)) - y).mean()


class Quiet(Noisy):
    def construct(self, x, y):
        return ops.square(self.out(ops.tanh(self.hidden(x))) - y).mean()


NETWORKS = {"pynative": Noisy, "graph": Quiet}


def job(mode):
    return Job(mode=mode, cell=lambda: accumulation_cell(network=NETWORKS[mode]))


@functools.cache
def whole(mode):
    """The steps of an uninterrupted job."""
    return job(mode).uninterrupted(EPOCHS).steps


def interrupted(root, at, mode, **options):
    broken = job(mode)
    with pytest.raises(CrashError):
        broken.started(checkpoints(root, **options), EPOCHS, Interrupt(at))


def places(root):
    """Cycle and micro-step of every checkpoint, in order."""
    names = [one.name.split("-") for one in ck.CheckpointManager(root).checkpoints()]
    return [(int(cycle[1:]), int(micro_step[1:])) for _, cycle, micro_step in names]


def test_align_waits_for_the_boundary(tmp_path):
    expected = whole("pynative")
    interrupted(tmp_path, 18, "pynative", every=3, mid_cycle="align", keep=ck.KeepLatest(99))
    # Due after 3, 6, 9, 12 and 15 micro-steps; K = 4.
    assert places(tmp_path) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    steps = job("pynative").resumed(checkpoints(tmp_path), EPOCHS).steps
    assert steps == {step: expected[step] for step in range(17, STEPS + 1)}


def test_align_stores_end_of_training_in_mid_cycle(tmp_path):
    """And nothing before a save is due."""
    keep = ck.KeepLatest(99)
    job("pynative").started(checkpoints(tmp_path, 14, mid_cycle="align", keep=keep), EPOCHS, Stop(18))
    assert places(tmp_path) == [(4, 0), (4, 2)]
    expected = whole("pynative")
    steps = job("pynative").resumed(checkpoints(tmp_path), EPOCHS).steps
    assert steps == {step: expected[step] for step in range(19, STEPS + 1)}


def test_rewind_begins_the_cycle_again_in_graph(tmp_path):
    expected = whole("graph")
    interrupted(tmp_path, 7, "graph", every=1, mid_cycle="rewind", keep=ck.KeepLatest(99))
    assert places(tmp_path) == [(0, 0), (1, 0)], "each boundary is stored once"
    steps = job("graph").resumed(checkpoints(tmp_path), EPOCHS).steps
    assert steps == {step: expected[step] for step in range(5, STEPS + 1)}


def test_rewind_again_and_again_goes_on_exactly(tmp_path):
    expected = whole("pynative")
    seen = {}
    for at in (6, 7, 11, 19, 23, 30):
        run = job("pynative")
        start = run.resumed if seen else run.started
        with pytest.raises(CrashError):
            start(checkpoints(tmp_path, every=5, mid_cycle="rewind"), EPOCHS, Interrupt(at))
        seen |= run.trace.steps
    last = job("pynative").resumed(checkpoints(tmp_path, mid_cycle="rewind"), EPOCHS)
    assert max(seen) == 30
    seen |= last.steps
    assert seen == expected


def test_rewind_after_mid_cycle_start_stores_accumulators(tmp_path):
    """They are stored until the next boundary."""
    expected = whole("pynative")
    interrupted(tmp_path, 7, "pynative", every=6)
    assert places(tmp_path) == [(1, 2)]
    with pytest.raises(CrashError):
        job("pynative").resumed(checkpoints(tmp_path, 7, mid_cycle="rewind"), EPOCHS, Interrupt(8))
    assert places(tmp_path)[-1] == (1, 3)
    steps = job("pynative").resumed(checkpoints(tmp_path), EPOCHS).steps
    assert steps == {step: expected[step] for step in range(8, STEPS + 1)}


def test_restore_forgets_which_cycle_was_marked():
    """One `StateManager` goes on within the cycle whose beginning it had marked."""
    begin_process()
    cell = accumulation_cell(4, network=Quiet)
    state = StateManager(cell)
    state.begin("runs/mid")
    state.mark_cycle_start()
    for seed in range(2):
        cell(*map(ms.Tensor, samples(4, seed).values()))
    assert state.capture_cycle_start().progress.micro_step == 0
    state.apply(contents_of(state.capture(), "a000001-c0000000000-m0002"))
    assert state.capture_cycle_start().progress.micro_step == 2


class Counted(Quiet):
    def __init__(self):
        super().__init__()
        self.drop = ck.nn.Dropout(0.3)


def test_rewind_refuses_network_with_statistics_at_start(tmp_path):
    def stock():
        network = Quiet()
        return nn.TrainOneStepCell(network, adam(network.trainable_params()))

    for cell, message in [
        (lambda: accumulation_cell(network=Dropping), r"network\.norm \(BatchNorm1d\) keeps state.*Use \"exact\""),
        (lambda: accumulation_cell(network=Counted), r"network\.drop \(Dropout\) keeps state"),
        (stock, "needs an AccumulationTrainCell"),
    ]:
        with pytest.raises(ck.ResumeError, match=message):
            Job(cell=cell).started(checkpoints(tmp_path / "run", mid_cycle="rewind"), EPOCHS)
        assert not (tmp_path / "run").exists(), message


class Counting(Quiet):
    """Changes a parameter of its own in the forward pass, which nobody can know beforehand."""

    def __init__(self):
        super().__init__()
        self.seen = ms.Parameter(ms.Tensor([0.0]), name="seen", requires_grad=False)

    def construct(self, x, y):
        ops.assign_add(self.seen, ops.ones_like(self.seen))
        return ops.square(self.out(ops.tanh(self.hidden(x))) - y).mean()


def test_rewind_refuses_save_after_forward_changed_state(tmp_path):
    broken = Job(cell=lambda: accumulation_cell(network=Counting))
    with pytest.raises(ck.ResumeError, match="seen changed since the cycle began"):
        broken.started(checkpoints(tmp_path, 6, mid_cycle="rewind"), EPOCHS)
    assert broken.cell.counters.micro_steps == 6
    assert places(tmp_path) == []


class Drawing(Callback):
    """Draws at the beginning of every epoch, as for a new order of something."""

    def on_train_epoch_begin(self, run_context):
        np.random.rand(3)


def test_rewind_leaves_epoch_begin_draws_to_next_start(tmp_path):
    expected = job("pynative").uninterrupted(EPOCHS, Drawing()).steps
    options = {"every": 1, "mid_cycle": "rewind"}
    seen = {}
    for at in (8, 9):
        run = job("pynative")
        start = run.resumed if seen else run.started
        with pytest.raises(CrashError):
            start(checkpoints(tmp_path, **options), EPOCHS, Drawing(), Interrupt(at))
        seen |= run.trace.steps
    seen |= job("pynative").resumed(checkpoints(tmp_path, **options), EPOCHS, Drawing()).steps
    assert seen == expected


def test_beginning_of_a_cycle_keeps_nested_values():
    lists = {"user": {"seen": [1]}}
    start = CycleStart(StateManager(accumulation_cell()).progress(), lists, [])
    lists["user"]["seen"].append(2)
    assert start.sections == {"user": {"seen": [1]}}
