"""Random operators that loops and callbacks call by themselves."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

from exactness.jobs.job import job
from exactness.jobs.outcome import Told
from exactness.jobs.parts import (
    looped,
    train,
)


@job(Told("bernoulli"), "pynative")
def masks_by_bernoulli_in_the_loop(run):
    looped(run, lambda cell, at, x, y: cell(x * ops.bernoulli(ops.ones_like(x), 0.7), y))


@job(Told("Dropout"), "pynative")
def inputs_dropped_by_a_layer_of_the_loop(run):
    drop = nn.Dropout(p=0.3).set_train()
    looped(run, lambda cell, at, x, y: cell(drop(x), y))


@job(Told("default_rng"), "graph")
def generator_without_a_seed_per_batch(run):
    def step(cell, at, x, y):
        return cell(x + ms.Tensor(np.random.default_rng().normal(size=x.shape), ms.float32), y)

    looped(run, step)


class Bernoulli(Callback):
    """Sets random weights to zero."""

    def on_train_step_end(self, run_context):
        weight = run_context.original_args().train_network.network.network.out.weight
        ops.assign(weight, weight * ops.bernoulli(ops.ones_like(weight), 0.9))


@job(Told("bernoulli"), "pynative")
def callback_that_draws_by_bernoulli(run):
    train(run, callbacks=[Bernoulli()])
