"""Cells and optimizers that keep or change something by themselves."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Model

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused, Told
from exactness.jobs.parts import (
    CLASSES,
    EPOCHS,
    FEATURES,
    Loss,
    Net,
    accumulating,
    adam,
    looped,
    rate_of,
    slices,
    train,
)


@job(Refused(("parameters were replaced",), after=7, warned="AccumulationTrainCell.optimizer"), "pynative")
@job(Refused(("parameters were replaced",), after=7, warned="AccumulationTrainCell.optimizer"), "graph")
def optimizer_of_the_cell_exchanged(run):
    """SWATS: from Adam to SGD."""

    def step(cell, at, x, y):
        if at == 6:
            cell.optimizer = nn.SGD(cell.network.trainable_params(), 0.05)
        return cell(x, y)

    looped(run, step)


class Adapter(nn.Cell):
    def __init__(self):
        super().__init__()
        self.base = nn.Dense(FEATURES, CLASSES)
        self.down, self.up = nn.Dense(FEATURES, 2, has_bias=False), nn.Dense(2, CLASSES, has_bias=False)
        self.active = False

    def enable(self):
        self.active = True

    def construct(self, x):
        out = self.base(x)
        if self.active:
            out = out + self.up(self.down(x))
        return out


@job(Told("active"), "pynative")
@job(Told("active"), "graph")
def adapter_enabled_once_by_its_method(run):
    cell = accumulating(Loss(Adapter()))

    def step(cell, at, x, y):
        if at == 6:
            cell.network.network.enable()
        return cell(x, y)

    looped(run, step, cell)


@job(Told("temperature"), "pynative")
def temperature_of_the_cell_lowered_by_the_loop(run):
    class Tempered(nn.Cell):
        def __init__(self):
            super().__init__()
            self.network, self.temperature = Net(), 2.0

        def construct(self, x, y):
            return ops.cross_entropy(self.network(x) / self.temperature, y)

    def step(cell, at, x, y):
        cell.network.temperature = cell.network.temperature * 0.9
        return cell(x, y)

    looped(run, step, accumulating(Tempered()))


class Calls(nn.TrainOneStepCell):
    """The critic of a pair is trained at each call, the maker at each third."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.calls = 0

    def __call__(self, *inputs):
        self.calls += 1
        loss = super().__call__(*inputs)
        if self.calls % 3 == 0:
            for p in self.network.trainable_params():
                ops.assign(p, p * 0.9)
        return loss


@job(Told("calls"), "pynative")
def train_cell_that_counts_in_its_call(run):
    loss = Loss()
    run.train(Model(Calls(loss, adam(loss))), EPOCHS, slices())


class DictMomentum(nn.Optimizer):
    """Its moments are in a dictionary."""

    def __init__(self, params, rate):
        super().__init__(rate, params)
        self.moments = {}

    def construct(self, grads):
        rate = self.get_lr()
        for weight, grad in zip(self.parameters, grads, strict=True):
            moment = self.moments.get(weight.name, 0) * 0.9 + grad
            self.moments[weight.name] = moment
            ops.assign_sub(weight, rate * moment)
        return True


@job(Told("moments"), "pynative")
def optimizer_with_moments_in_a_dictionary(run):
    loss = Loss()
    run.train(Model(nn.TrainOneStepCell(loss, DictMomentum(loss.trainable_params(), 0.05))), EPOCHS, slices())


class DropPath(nn.Cell):
    """By NumPy's global generator, in construct."""

    def construct(self, x):
        if self.training and np.random.rand() < 0.3:
            return x * 0.0
        return x / 0.7


class DropPathNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden, self.drop, self.out = nn.Dense(FEATURES, 8), DropPath(), nn.Dense(8, CLASSES)

    def construct(self, x):
        return self.out(self.drop(ops.tanh(self.hidden(x))))


@job(Exact(), "pynative")
@job(Told("random"), "graph")
def drop_path_by_numpy(run):
    train(run, Loss(DropPathNet()))


class CachedMask(nn.Cell):
    """A mask that is drawn at the first call and kept."""

    def __init__(self):
        super().__init__()
        self.network, self.mask = Net(), None

    def construct(self, x, y):
        if self.mask is None:
            self.mask = ms.Tensor(np.random.rand(*x.shape) > 0.3, ms.float32)
        return ops.cross_entropy(self.network(x * self.mask), y)


@job(Told("mask"), "pynative")
def mask_drawn_at_the_first_call(run):
    train(run, CachedMask())


class Experiment(nn.Cell):
    """Lightning's manner: a cell with hooks, and a loop that knows nothing of it."""

    def __init__(self):
        super().__init__()
        self.loss = Loss()
        self.cell = accumulating(self.loss)
        self.outputs = []

    def training_step(self, batch):
        value = self.cell(*batch)
        self.outputs.append(float(value))
        return value

    def on_step_end(self):
        if len(self.outputs) == 4:
            ops.assign(rate_of(self.cell), ms.Tensor(0.01 * sum(self.outputs), ms.float32))
            self.outputs.clear()


@job(Told("outputs"), "pynative")
def module_with_hooks_as_in_lightning(run):
    module = Experiment()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(module.cell, batches)
        run.begin(manager.restore(state))
        for batch in batches:
            loss = module.training_step(batch)
            module.on_step_end()
            run.step(batch, loss, cell=module.cell)
            manager.step(state)
