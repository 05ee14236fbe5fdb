"""What a loop makes when it needs it for the first time, and then changes, is named before the first batch."""

# ruff: noqa: B905 - loops as people write them

from __future__ import annotations

import functools
import itertools
import logging

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from test_loop_begun import Training, check_refused

LOSS = nn.MSELoss()


def gradients():
    return ms.Tensor(np.ones((1, 6)), ms.float32), ms.Tensor(np.ones(1), ms.float32)


def optimizer():
    return nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)


class Trainer:
    def __init__(self, network):
        self.network = network
        self.one = self.two = None
        self.by_name = {}

    @property
    def optimizer(self):
        if self.one is None:
            self.one = nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)
        return self.one

    def optimizer_of(self, name):
        if name not in self.by_name:
            self.by_name[name] = nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)
        return self.by_name[name]

    def build(self):
        network = nn.Dense(6, 1)
        self.two = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        compute = ms.value_and_grad(nn.WithLossCell(network, nn.MSELoss()), None, self.two.parameters)

        @ms.jit
        def step(x, y):
            loss, grads = compute(x, y)
            self.two(grads)
            return loss

        self.one = step

    def step(self, x, y):
        if self.one is None:
            self.build()
        return self.one(x, y)

    @functools.cached_property
    def first_loss(self):
        given = self.network(ms.Tensor(np.ones((2, 6)), ms.float32), ms.Tensor(0.5))
        return LOSS(given, ms.Tensor(0.5))


def optimizer_in_an_attribute(cell, x, y, trainer):
    cell(x, y)
    if trainer.one is None:
        trainer.one = nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)
    trainer.one(gradients())


def step_in_an_attribute(cell, x, y, trainer):
    if trainer.one is None:
        network = nn.WithLossCell(nn.Dense(6, 1), nn.MSELoss())
        trainer.one = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9)).set_train()
    trainer.one(x, ms.Tensor(np.ones((2, 1)), ms.float32))


def optimizer_in_a_dict(cell, x, y, trainer):
    cell(x, y)
    trainer.optimizer_of("a")(gradients())


def optimizer_of_a_property(cell, x, y, trainer):
    cell(x, y)
    trainer.optimizer(gradients())


def generator(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = np.random.default_rng(0)
    cell(x, y * trainer.one.random())


def iterator(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = itertools.cycle([0.5, 1.0, 1.5])
    cell(x, y * next(trainer.one))


def parameter(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = ms.Parameter(ms.Tensor(1.0), name="temperature")
    cell(x, y * trainer.one)
    ops.assign(trainer.one, trainer.one * 0.9)


def average(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = nn.Dense(6, 1)
    cell(x, y + trainer.one(x).mean())
    for one, other in zip(trainer.one.get_parameters(), cell.network.get_parameters()):
        one.set_data(one * 0.9 + other.mean())


def loss_that_a_property_keeps(cell, x, y, trainer):
    cell(x, y / trainer.first_loss)


def optimizer_that_setdefault_puts_into_a_dict(cell, x, y, trainer):
    cell(x, y)
    network = nn.Dense(6, 1)
    trainer.by_name.setdefault("a", nn.Momentum(network.trainable_params(), 0.1, 0.9))(gradients())


def optimizer_of_a_compiled_step(cell, x, y, trainer):
    trainer.step(x, ms.Tensor(np.ones((2, 1)), ms.float32))


def loss_scaler(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = ms.amp.DynamicLossScaler(2.0**4, 2, 5)
    cell(x, y * trainer.one.scale_value)
    trainer.one.adjust(ms.Tensor(True))


LOST = [
    *(optimizer_in_an_attribute, step_in_an_attribute, optimizer_in_a_dict, optimizer_of_a_property, generator),
    *(iterator, parameter, average, loss_that_a_property_keeps, optimizer_that_setdefault_puts_into_a_dict),
    *(optimizer_of_a_compiled_step, loss_scaler),
]


@pytest.mark.parametrize("iteration", LOST, ids=lambda one: one.__name__)
def test_what_is_made_late_and_changed_is_named(iteration):
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network)
        restore()
        for x, y in batches:
            iteration(cell, x, y, trainer)

    check_refused(loop)


def test_variable_that_gets_an_optimizer_late_is_named():
    def loop(cell, batches, rate, restore):
        late = None
        restore()
        for x, y in batches:
            cell(x, y)
            if late is None:
                late = nn.Momentum(nn.Dense(6, 1).trainable_params(), 0.1, 0.9)
            late(gradients())

    check_refused(loop)


def table(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = np.random.default_rng(0).random(8)
    cell(x, y * trainer.one[2])


def mask(cell, x, y, trainer):
    if trainer.one is None:
        trainer.one = ms.Tensor(np.ones((2, 6)), ms.float32)
    cell(x * trainer.one, y)


def log(cell, x, y, trainer):
    loss = cell(x, y)
    if trainer.one is None:
        trainer.one = logging.getLogger("losses")
    trainer.one.info("loss %s", loss)


def optimizer_of_its_own_batch(cell, x, y, trainer):
    cell(x, y)
    own = optimizer()
    own(gradients())


@pytest.mark.parametrize("iteration", [table, mask, log, optimizer_of_its_own_batch], ids=lambda one: one.__name__)
def test_what_is_made_late_and_read_is_quiet(iteration):
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network)
        restore()
        for x, y in batches:
            iteration(cell, x, y, trainer)

    Training(strict=True).train(loop)
