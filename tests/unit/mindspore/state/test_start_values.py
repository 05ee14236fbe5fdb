"""What a script begins with, if it is not what the saved run began with, is named before the resumed training."""

from __future__ import annotations

import os
import time
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Model
from support.training import adam, begin_process, checkpoints, pipeline

import ckptkit as ck
from ckptkit.errors import ResumeError

SAID = "differs from the saved run: "


class Masked(nn.Cell):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.out = nn.Dense(6, 3)

    def construct(self, x, y):
        return ops.square(self.out(x * self.mask) - y).mean()


def drawn(seed):
    return ms.Tensor(np.random.default_rng(seed).normal(size=6).astype(np.float32))


class Options:
    noise = 0.0

    def __init__(self, decay):
        self.decay = decay


VALUES = {"mask": 1, "noise": 2, "scale": 1.0, "shift": 0.5, "decay": 0.25, "twice": False, "limit": None}
OTHERS = {"mask": 3, "noise": 4, "scale": 2.0, "shift": 0.25, "decay": 0.5, "twice": True, "limit": 9.0}
NAMES = {
    "mask": "life(): cell.network.mask",
    "noise": "life(): noise",
    "scale": "life(): scale",
    "shift": "life(): table",
    "decay": "life(): options.decay",
    "twice": "life(): twice",
    "limit": "life(): limit",
}


def life(root, *, strict=False, ignore=(), epochs=1, mask, noise, scale, shift, decay, twice, limit):
    """Train two micro-steps; beside it, what is another one in each process and decides nothing."""
    begin_process()
    network, noise = Masked(drawn(mask)), drawn(noise)
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(pipeline(), epochs=epochs)
    state = ck.StateManager(cell, batches, strict=strict, training=ck.Training(ignore=["test_*", *ignore]))
    table, options, began = {"shift": shift}, Options(decay), time.monotonic()
    arguments = types.SimpleNamespace(id=id(cell), port=os.getpid() << 25, folder=f"runs/{time.time()}")
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        point = manager.restore(state)
        for x, y in batches:
            given = (x * scale + noise + table["shift"]) * options.decay
            given = given * 2 if twice else given
            if limit is None or float(given.max().asnumpy()) < limit:
                cell(given, y)
            print(time.monotonic() - began, arguments.id, arguments.port, arguments.folder)
            manager.step(state)
            if cell.counters.micro_steps == point.batches_delivered + 2:
                break


@pytest.mark.parametrize("name", list(VALUES))
def test_value_that_is_another_one_is_named_alone(root, caplog, name):
    """It is compared with the run's beginning, not with the last start."""
    life(root, **VALUES)
    for starts in (1, 2):
        life(root, **{**VALUES, name: OTHERS[name]})
        said = [message.partition(SAID)[2] for message in caplog.messages if SAID in message]
        assert [text.partition(" (was ")[0] for text in said] == [NAMES[name]] * starts
        assert all(text.count(" (was ") == 1 for text in said)


def test_strict_refuses_it(root):
    life(root, strict=True, **VALUES)
    with pytest.raises(ResumeError, match=SAID):
        life(root, strict=True, **{**VALUES, "scale": 3.0})


def test_what_is_the_same_or_no_value_of_the_training_is_not_named(root, caplog):
    """Addresses, times, folders; more epochs than before."""
    life(root, strict=True, **VALUES)
    life(root, strict=True, epochs=2, **VALUES)
    assert SAID not in caplog.text


def test_what_is_ignored_is_not_named(root, caplog):
    life(root, **VALUES)
    life(root, ignore=["life(): scale"], strict=True, **{**VALUES, "scale": 3.0})
    assert SAID not in caplog.text


def test_array_in_a_cell_of_a_model_is_named(root, caplog):
    for seed in (1, 2):
        begin_process()
        network = Masked(drawn(seed))
        model = Model(ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2))
        checkpoints(root).train(model, seed, pipeline())
    assert SAID in caplog.text
    assert "network.mask (was " in caplog.text


class Anchored:
    def __init__(self, network):
        self.weights = [ms.Tensor(parameter.asnumpy().copy()) for parameter in network.trainable_params()]


@pytest.mark.parametrize("before", [True, False])
def test_copy_of_the_weights_that_is_taken_after_the_restore_is_named(root, caplog, before):
    for _ in range(2):
        begin_process()
        network = Masked(drawn(1))
        cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
        batches = ck.data.resumable(pipeline(), epochs=1)
        state = ck.StateManager(cell, batches)
        with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2)) as manager:
            anchor = Anchored(network) if before else None
            point = manager.restore(state)
            anchor = anchor or Anchored(network)
            for x, y in batches:
                cell(x + anchor.weights[0].mean(), y)
                manager.step(state)
                if cell.counters.micro_steps == point.batches_delivered + 2:
                    break
    assert (f"{SAID}" in caplog.text and "anchor.weights" in caplog.text) == (not before)
