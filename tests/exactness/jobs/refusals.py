"""Trainings that no resume can continue exactly: a start ends with what to do instead."""

from __future__ import annotations

import os
import time

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.parts import (
    BATCH,
    EPOCHS,
    FEATURES,
    SAMPLES,
    Loss,
    accumulating,
    adam,
    arrays,
    batches,
    rows,
    slices,
)


@job("pynative", refused=("parameters were replaced",), trained=7)
def optimizer_of_the_cell_exchanged(run):
    """From Adam to SGD in mid run."""
    cell, losses = accumulating(), []

    def step(x, y):
        if len(losses) == 6:
            cell.optimizer = nn.SGD(cell.network.trainable_params(), 0.05)
        losses.append(cell(x, y))
        return losses[-1]

    run.loop(cell, batches(), step)


class Clip(ms.train.Callback):
    """Keeps weights small, as a critic's have to be."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def on_train_step_end(self, run_context):
        for weight in self.weights:
            weight.set_data(ops.clamp(weight, -0.3, 0.3))


@job("pynative", refused=("set_data", "ops.assign"), trained=6)
def weights_replaced_between_steps(run):
    """MindSpore's optimizer does not update a weight any more once set_data replaced it, until a resume."""
    loss = Loss()
    run.train(accumulating(loss), EPOCHS, slices(), callbacks=[Clip(loss.trainable_params())])


@job("pynative", refused=("global_step", "by name"), default=True)
def two_optimizers_in_one_list(run):
    maker, critic = nn.Dense(4, FEATURES), nn.Dense(FEATURES, 1)
    critic.update_parameters_name("critic.")
    optimizers = [adam(maker), nn.RMSProp(critic.trainable_params(), 1e-2)]
    run.loop([maker, critic, *optimizers], batches(), lambda x, y: None)


@job("graph", refused=("each of these counts its own cycles", "by a name of its own"))
def two_accumulating_cells(run):
    losses = [Loss(), Loss()]
    losses[1].update_parameters_name("second.")
    run.loop([accumulating(loss) for loss in losses], batches(), lambda x, y: None)


@job("graph", refused=("was called", "times already"))
def rates_tried_before_the_training(run):
    """A search for a rate with the very cell that is trained then."""
    cell = accumulating()
    for x, y in rows()[:4]:
        cell(x, y)
    run.loop(cell, batches())


@job("graph", refused=("one resumable()", "zip"))
def two_resumables_of_one_loop(run):
    cell, other = accumulating(), iter(batches(rows()))
    run.loop(cell, batches(), lambda x, y: cell(x + 0.1 * next(other)[0], y))


@job("graph", refused=("can be iterated only once", "state_dict"), default=True)
def generator_function(run):
    def read():
        yield from rows()

    run.loop(accumulating(), ck.data.resumable(read(), EPOCHS))


class Hashed:
    """Goes through a set of strings: the order is another one in each process."""

    def __init__(self):
        self.salt = os.urandom(4).hex()  # forked processes have the hashes of their server

    def __iter__(self):
        x, y = arrays()
        order = [int(name.rpartition("-")[2]) for name in {f"{self.salt}-{index}" for index in range(SAMPLES)}]
        for chosen in np.array(order).reshape(-1, BATCH):
            yield ms.Tensor(x[chosen]), ms.Tensor(y[chosen])


@job("graph", refused=("did not give the same", "sample_rng"), by="resumed")
def order_of_a_set_of_strings(run):
    run.loop(accumulating(), batches(Hashed()))


@job("graph", refused=("seed",), by="resumed")
def seed_of_the_clock(run):
    ms.set_seed(time.time_ns() % 2**31)
    run.train(accumulating(), EPOCHS, slices())
