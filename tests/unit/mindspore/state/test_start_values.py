"""What a script begins with, if it is not what the saved run began with, is named before the resumed training."""

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


VALUES = {"mask": 1.0, "scale": 1.0, "decay": 0.25, "limit": None}
OTHERS = {"mask": 3.0, "scale": 2.0, "decay": 0.5, "limit": 9.0}
PATHS = {"mask": "cell.network.mask", "decay": "options.decay"}


def life(root, *, strict=False, ignore=(), epochs=1, copied=None, mask, scale, decay, limit):
    """Train two micro-steps; beside it, what is another one in each process and decides nothing."""
    begin_process()
    network = Masked(ms.Tensor(np.full(6, mask, np.float32)))
    cell = ck.AccumulationTrainCell(network, adam(network.trainable_params()), 2).set_train()
    batches = ck.data.resumable(pipeline(), epochs=epochs)
    state = ck.StateManager(cell, batches, strict=strict, training=ck.Training(ignore=["test_*", *ignore]))
    options, began = types.SimpleNamespace(decay=decay), time.monotonic()
    arguments = types.SimpleNamespace(id=id(cell), port=os.getpid() << 25, folder=f"runs/{time.time()}")
    with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")) as manager:
        anchor = [weight.copy() for weight in network.get_parameters()] if copied == "before" else []
        point = manager.restore(state)
        anchor = [weight.copy() for weight in network.get_parameters()] if copied == "after" else anchor
        for x, y in batches:
            given = x * scale * options.decay + (anchor[0].mean() if anchor else 0)
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
        assert said.count(" (was ") == len(names), names
        assert said.partition(" (was ")[0] == f"life(): {PATHS.get(names[0], names[0])}" or len(names) > 1


def test_what_is_the_same_or_no_value_of_the_training_is_not_named(root, caplog):
    """Addresses, times, folders; more epochs than before; what is ignored."""
    life(root, strict=True, **VALUES)
    life(root, strict=True, epochs=2, **VALUES)
    life(root, strict=True, ignore=["life(): scale"], **{**VALUES, "scale": 3.0})
    assert SAID not in caplog.text
    with pytest.raises(ResumeError, match=SAID):
        life(root, strict=True, **{**VALUES, "scale": 3.0})


def test_copy_of_the_weights_that_is_taken_after_the_restore_is_named(tmp_path, caplog):
    for copied, is_named in (("before", False), ("after", True)):
        for _ in range(2):
            life(tmp_path / copied, copied=copied, **VALUES)
        assert (SAID in caplog.text and "anchor" in caplog.text) == is_named, copied
