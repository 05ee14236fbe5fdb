"""State that code changes which cannot be read: it is named by what it changes, after a few micro-steps."""

from __future__ import annotations

import functools
import itertools
import threading
import types

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named
from exactness.jobs.parts import FEATURES, Loss, Net, adam, looped, rate_of, train

SOON = 4  # micro-steps


@job(Named("budget._value", within=SOON), "graph")
def budget_of_a_semaphore(run):
    budget = threading.Semaphore(9)
    looped(run, lambda cell, at, x, y: cell(x * 0.5 if budget.acquire(blocking=False) else x, y))


def anneal(options, **factors):
    for name, factor in factors.items():
        setattr(options, name, getattr(options, name) * factor)


@job(Named("options.scale", within=SOON), "graph", default=True)
def attribute_by_a_name_in_a_variable(run):
    options = types.SimpleNamespace(scale=1.0)

    def step(cell, at, x, y):
        anneal(options, scale=0.9)
        return cell(x * options.scale, y)

    looped(run, step)


@job(Exact(), "graph")
def attribute_by_a_name_in_a_variable_given_by_name(run):
    options = types.SimpleNamespace(scale=1.0)

    def step(cell, at, x, y):
        anneal(options, scale=0.9)
        return cell(x * options.scale, y)

    looped(run, step, options=ck.attributes(options, "scale"))


class Falling(nn.Cell):
    """Takes its factor from an iterator at each call."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.factors = itertools.count(1)

    def construct(self, x):
        return self.network(x / next(self.factors))


@job(Named("factors", within=SOON), "pynative")
def iterator_in_an_attribute_of_a_cell(run):
    train(run, Loss(Falling()))


class Once(type):
    made = {}  # noqa: RUF012 - shared on purpose

    def __call__(cls, *given):
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*given)
        return cls.made[cls]


class Clock(metaclass=Once):
    def __init__(self):
        self.time = 0

    def tick(self):
        self.time += 1
        return self.time


@job(Named("time", within=SOON), "graph")
def only_object_of_a_metaclass(run):
    looped(run, lambda cell, at, x, y: cell(x / Clock().tick(), y))


class Marks(Callback):
    steps = itertools.count(1)

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def on_train_step_end(self, run_context):
        ops.assign(self.rate, ms.Tensor(0.02 / next(self.steps), ms.float32))


@job(Named("Marks", within=SOON), "graph")
def iterator_in_the_class_of_a_callback(run):
    loss = Loss()
    optimizer = adam(loss)
    train(run, loss, optimizer, callbacks=[Marks(optimizer.learning_rate)])


@job(Named("rate.rate", within=SOON), "graph")
def descriptor_that_counts(run):
    class Decaying:
        def __init__(self):
            self.rate = 0.02

        def __get__(self, one, kind=None):
            self.rate *= 0.9
            return self.rate

    class Options:
        rate = Decaying()

    options = Options()

    def step(cell, at, x, y):
        rate_of(cell).set_data(ms.Tensor(options.rate, ms.float32))
        return cell(x, y)

    looped(run, step)


@job(Named("noises[0]"), "graph")
def bound_method_of_a_generator_in_a_list(run):
    noises = [functools.partial(np.random.default_rng(3).normal, 0.0, 0.1)]
    looped(run, lambda cell, at, x, y: cell(x + ms.Tensor(noises[0](size=FEATURES), ms.float32), y))
