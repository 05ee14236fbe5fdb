"""``mid_cycle``: what a save between two boundaries holds, and that either way resumes exactly."""

import contextlib
import types

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
    Quiet,
    accumulation_cell,
    adam,
    checkpoints,
    samples,
)

import ckptkit as ck
from ckptkit.mindspore.state.manager import StateManager

EPOCHS = 3
STEPS = EPOCHS * SIZE


class Noisy(Quiet):
    def logits(self, x):
        return self.out(ops.dropout(ops.tanh(self.hidden(x)), p=0.3, training=True))


def job():
    return Job(cell=lambda: accumulation_cell(network=Noisy))


def lives(root, kills, *callbacks, **options):
    """The steps of a run that is interrupted at each of these, and the checkpoints before its last life."""
    seen = {}
    for at in (*kills, None):
        places = [one.name[-17:] for one in ck.CheckpointManager(root).checkpoints()] if seen else []
        run = job()
        start = run.resumed if seen else run.started
        with contextlib.nullcontext() if at is None else pytest.raises(CrashError):
            start(checkpoints(root, **options), EPOCHS, *callbacks, *([] if at is None else [Interrupt(at)]))
        seen |= run.trace.steps
    return seen, places


class Draws(Callback):
    """Draws as a training begins, and for each epoch, as for a new order of something."""

    def on_train_begin(self, run_context):
        np.random.rand()

    def on_train_epoch_begin(self, run_context):
        np.random.rand(3)


def test_rewind_leaves_draws_of_begin_hooks_to_next_start(tmp_path):
    """The start of the first cycle has what they drew before it."""
    expected = job().uninterrupted(EPOCHS, Draws()).steps
    seen, places = lives(tmp_path, [3, 8, 9], Draws(), every=1, mid_cycle="rewind", keep=ck.KeepLatest(99))
    assert seen == expected
    assert [int(place[1:11]) for place in places] == [0, 0, 1, 1, 2], "each life stores each boundary once"


def test_align_waits_for_the_boundary(tmp_path):
    expected = job().uninterrupted(EPOCHS).steps
    for every, cycles in [(3, (1, 2, 3, 4)), (9, (3,))]:  # K = 4
        seen, places = lives(tmp_path / str(every), [18], every=every, mid_cycle="align", keep=ck.KeepLatest(99))
        assert places == [f"c{cycle:010}-m0000" for cycle in cycles]
        assert seen == expected


def test_cycle_start_is_a_copy_that_a_restore_forgets():
    """One `StateManager` goes on within the cycle whose beginning it had marked."""
    cell, seen = accumulation_cell(4, network=Quiet), types.SimpleNamespace(batches=[1])
    state = StateManager(cell, seen=ck.attributes(seen, "batches"))
    state.begin("runs/mid")
    state.mark_cycle_start()
    for seed in range(2):
        cell(*map(ms.Tensor, samples(4, seed).values()))
        seen.batches.append(seed)
    start = state.capture_cycle_start()
    assert start.progress.micro_step == 0
    assert start.state["user"] != state.capture().state["user"]
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

    def logits(self, x):
        ops.assign_add(self.seen, ops.ones_like(self.seen))
        return super().logits(x)


def test_rewind_refuses_save_after_forward_changed_state(tmp_path):
    broken = Job(cell=lambda: accumulation_cell(network=Counting))
    with pytest.raises(ck.ResumeError, match="seen changed since the cycle began"):
        broken.started(checkpoints(tmp_path, 6, mid_cycle="rewind"), EPOCHS)
    assert broken.cell.counters.micro_steps == 6
    assert ck.CheckpointManager(tmp_path).checkpoints() == []
