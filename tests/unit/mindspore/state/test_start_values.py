"""What a script begins with, if it is not what the saved run began with, is named before the resumed training."""

from __future__ import annotations

import os
import time
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from support.training import adam, begin_process, pipeline

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


class Anchored:
    def __init__(self, network):
        self.weights = [ms.Tensor(parameter.asnumpy().copy()) for parameter in network.trainable_params()]


VALUES = {"mask": 1, "noise": 2, "scale": 1.0, "shift": 0.5, "decay": 0.25, "twice": False, "limit": None}
OTHERS = {"mask": 3, "noise": 4, "scale": 2.0, "shift": 0.25, "decay": 0.5, "twice": True, "limit": 9.0}
PATHS = {"mask": "cell.network.mask", "shift": "table", "decay": "options.decay"}


def life(root, *, strict=False, ignore=(), epochs=1, copied="never", mask, noise, scale, shift, decay, twice, limit):
    """Train two micro-steps; beside it, what is another one in each process and decides nothing."""
    begin_process()
    network, noise = Masked(drawn(mask)), drawn(noise)
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(pipeline(), epochs=epochs)
    state = ck.StateManager(cell, batches, strict=strict, training=ck.Training(ignore=["test_*", *ignore]))
    table, options, began = {"shift": shift}, Options(decay), time.monotonic()
    arguments = types.SimpleNamespace(id=id(cell), port=os.getpid() << 25, folder=f"runs/{time.time()}")
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        anchor = Anchored(network) if copied == "before the restore" else None
        point = manager.restore(state)
        anchor = Anchored(network) if copied == "after the restore" else anchor
        for x, y in batches:
            given = (x * scale + noise + table["shift"]) * options.decay
            given = given * 2 if twice else given
            given = given if anchor is None else given + anchor.weights[0].mean()
            if limit is None or float(given.max().asnumpy()) < limit:
                cell(given, y)
            print(time.monotonic() - began, arguments.id, arguments.port, arguments.folder)
            manager.step(state)
            if cell.counters.micro_steps == point.batches_delivered + 2:
                break


def test_values_that_are_other_ones_are_named_alone(root, caplog):
    """They are compared with the run's beginning, not with the last start."""
    life(root, **VALUES)
    for names in (*([name] for name in VALUES), ["limit"], [*VALUES]):
        caplog.clear()
        life(root, **{**VALUES, **{name: OTHERS[name] for name in names}})
        (said,) = [message.partition(SAID)[2] for message in caplog.messages if SAID in message]
        if names == [*VALUES]:
            assert said.count(" (was ") > 1
        else:
            assert said.partition(" (was ")[0] == f"life(): {PATHS.get(names[0], names[0])}"
            assert said.count(" (was ") == 1, names


def test_what_is_the_same_or_no_value_of_the_training_is_not_named(root, caplog):
    """Addresses, times, folders; more epochs than before; what is ignored."""
    life(root, strict=True, **VALUES)
    life(root, strict=True, epochs=2, **VALUES)
    life(root, strict=True, ignore=["life(): scale"], **{**VALUES, "scale": 3.0})
    assert SAID not in caplog.text
    with pytest.raises(ResumeError, match=SAID):
        life(root, strict=True, **{**VALUES, "scale": 3.0})


def test_copy_of_the_weights_that_is_taken_after_the_restore_is_named(tmp_path, caplog):
    for copied, is_named in (("before the restore", False), ("after the restore", True)):
        for _ in range(2):
            life(tmp_path / copied, copied=copied, **VALUES)
        assert (SAID in caplog.text and "anchor.weights" in caplog.text) == is_named, copied
