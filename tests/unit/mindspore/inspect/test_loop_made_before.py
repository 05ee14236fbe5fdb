"""What a loop would make, if it was not there yet, is not named while checkpoints hold what is there."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from test_loop_begun import Training, check_refused


def gradients(cell):
    return tuple(ms.Tensor(np.ones(one.shape), ms.float32) for one in cell.optimizer.parameters)


class Trainer:
    def __init__(self, network, optimizer):
        self.network = network
        self.one = optimizer
        self.by_name = {"a": optimizer}

    def built(self):
        if self.one is None:
            self.one = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        return self.one

    def returned(self):
        if self.one is not None:
            return self.one
        self.one = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        return self.one

    def of(self, name):
        if name not in self.by_name:
            self.by_name[name] = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        return self.by_name[name]


def built(trainer):
    return trainer.built()


def returned(trainer):
    return trainer.returned()


def by_name(trainer):
    return trainer.of("a")


def by_constant_name(trainer):
    if "a" not in trainer.by_name:
        trainer.by_name["a"] = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)
    return trainer.by_name["a"]


def by_truth(trainer):
    if not trainer.one:
        trainer.one = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)
    return trainer.one


def by_hasattr(trainer):
    if not hasattr(trainer, "one") or trainer.one is None:
        trainer.one = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)
    return trainer.one


def by_getattr(trainer):
    if getattr(trainer, "one", None) is None:
        trainer.one = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)
    return trainer.one


def otherwise(trainer):
    if trainer.one is not None:
        pass
    else:
        trainer.one = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)
    return trainer.one


def on_two_conditions(trainer):
    if trainer.one is None and len(trainer.by_name) < 2:
        trainer.one = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)
    return trainer.one


def by_setdefault(trainer):
    return trainer.by_name.setdefault("a", nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9))


WAYS = [
    *(built, returned, by_name, by_constant_name, by_truth, by_hasattr, by_getattr, otherwise, on_two_conditions),
    by_setdefault,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda one: one.__name__)
def test_optimizer_that_is_there_and_stored_is_quiet(way):
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network, cell.optimizer)
        restore()
        for x, y in batches:
            cell(x, y)
            way(trainer)(gradients(cell))

    Training(strict=True).train(loop)


@pytest.mark.parametrize("way", WAYS, ids=lambda one: one.__name__)
def test_optimizer_that_is_not_there_is_named(way):
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network, None)
        trainer.by_name.clear()
        restore()
        for x, y in batches:
            cell(x, y)
            way(trainer)(gradients(cell))

    check_refused(loop)


def put_away(trainer):
    trainer.one = None


def deleted(trainer):
    del trainer.one


def made_on_another_condition(trainer):
    trainer.one = nn.Momentum(trainer.network.trainable_params(), 0.1, 0.9)


@pytest.mark.parametrize("way", [built, returned, by_truth, by_getattr], ids=lambda one: one.__name__)
@pytest.mark.parametrize("change", [put_away, deleted, made_on_another_condition], ids=lambda one: one.__name__)
def test_optimizer_that_the_loop_puts_away_and_makes_again_is_named(way, change):
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network, cell.optimizer)
        restore()
        for number, (x, y) in enumerate(batches):
            cell(x, y)
            if number == 1:
                change(trainer)
            way(trainer)(gradients(cell))

    check_refused(loop)


def test_optimizer_that_is_put_away_after_the_restore_is_named():
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network, cell.optimizer)
        restore()
        trainer.one = None
        for x, y in batches:
            cell(x, y)
            trainer.built()(gradients(cell))

    check_refused(loop)


def test_optimizer_that_is_made_late_for_another_name_is_named():
    def loop(cell, batches, rate, restore):
        trainer = Trainer(cell.network, cell.optimizer)
        restore()
        for x, y in batches:
            cell(x, y)
            trainer.of("b")(gradients(cell))

    check_refused(loop)
