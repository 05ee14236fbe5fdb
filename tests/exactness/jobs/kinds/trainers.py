"""Trainers as libraries of models have them: a class with the loop in it."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused, Told
from exactness.jobs.parts import BATCH, EPOCHS, FEATURES, SAMPLES, Loss, Net, accumulating, adam, arrays, rows, slices


class Trainer:
    """Warms the rate up by a counter of its own, calls hooks, and keeps the best loss."""

    def __init__(self, run, cell, loader, hooks=()):
        self.run, self.cell, self.hooks = run, cell, list(hooks)
        self.batches = ck.data.resumable(loader, EPOCHS)
        self.cur_step, self.best = 0, float("inf")

    def state(self):
        return ck.StateManager(self.cell, self.batches)

    def fit(self):
        with self.run.manager() as self.manager:
            self.checkpoint = self.state()
            self.resume()
            self.train_all()

    def resume(self):
        self.run.begin(self.manager.restore(self.checkpoint))

    def train_all(self):
        for batch in self.batches:
            self.warm_up()
            self.loss = self.train_one(*batch)
            for hook in self.hooks:
                hook.on_step_end(self)
            self.run.step(batch, self.loss, cell=self.cell)
            self.manager.step(self.checkpoint)

    def warm_up(self):
        self.cur_step += 1
        rate = np.interp(self.cur_step, [0, 10], [0.0, 0.02])
        self.cell.optimizer.learning_rate.set_data(ms.Tensor(rate, ms.float32))

    def train_one(self, x, y):
        return self.cell(x, y)


@job(Told("cur_step"), "graph")
def trainer_that_warms_up_by_its_own_counter(run):
    Trainer(run, accumulating(), slices()).fit()


class Counting(Trainer):
    def resume(self):
        point = self.manager.restore(self.checkpoint)
        self.run.begin(point)
        self.cur_step = point.batches_delivered


@job(Exact(), "graph")
def trainer_that_counts_on_from_the_checkpoint(run):
    Counting(run, accumulating(), slices()).fit()


class Named(Trainer):
    def state(self):
        return ck.StateManager(self.cell, self.batches, trainer=ck.attributes(self, "cur_step", "best"))


@job(Exact(), "graph")
def trainer_given_by_its_attributes(run):
    Named(run, accumulating(), slices()).fit()


class LossHook:
    """Halves the rate where the loss has risen."""

    def __init__(self):
        self.last = 0.0

    def on_step_end(self, trainer):
        loss = float(trainer.loss)
        if loss > self.last:
            trainer.cell.optimizer.learning_rate.set_data(trainer.cell.optimizer.learning_rate * 0.5)
        self.last = loss


class Shown:
    def __init__(self):
        self.losses = []

    def on_step_end(self, trainer):
        self.losses.append(float(trainer.loss))
        print(np.mean(self.losses))


class Plain(Trainer):
    def warm_up(self):
        pass


@job(Told("hooks[1]"), "graph")
def second_hook_that_remembers_the_loss(run):
    Plain(run, accumulating(), slices(), [Shown(), LossHook()]).fit()


@job(Exact(), "graph")
def hook_that_only_shows(run):
    Plain(run, accumulating(), slices(), [Shown()]).fit()


class Tempered(Plain):
    """Sets what another of its methods uses."""

    temperature = 1.0

    def train_one(self, x, y):
        loss = self.cell(x * self.temperature, y)
        self.temperature = 0.9 * self.temperature + 0.01 * float(loss)
        return loss


@job(Told("temperature"), "graph")
def temperature_of_a_class_set_in_the_object(run):
    Tempered(run, accumulating(), slices()).fit()


class Averaged(Plain):
    """SWA: averages from the second epoch on, given by name."""

    def __init__(self, run, cell, loader):
        super().__init__(run, cell, loader)
        self.averages = ms.ParameterTuple(cell.network.trainable_params()).clone("swa", "same")
        self.count = ms.Parameter(ms.Tensor(0.0), name="swa.count", requires_grad=False)

    def state(self):
        return ck.StateManager(self.cell, self.batches, averages=self.averages, count=self.count)

    def train_one(self, x, y):
        loss = self.cell(x, y)
        if self.batches.epoch > 0:
            self.count.set_data(self.count + 1)
            for average, weight in zip(self.averages, self.cell.network.trainable_params(), strict=True):
                average.set_data(average + (weight - average) / self.count)
        return loss


@job(Exact(), "graph")
def weights_averaged_in_the_second_epoch(run):
    Averaged(run, accumulating(), slices()).fit()


class Counted(Averaged):
    """The same, and counts in a plain number."""

    def __init__(self, run, cell, loader):
        super().__init__(run, cell, loader)
        self.number = 0

    def train_one(self, x, y):
        loss = self.cell(x, y)
        self.number += 1
        for average, weight in zip(self.averages, self.cell.network.trainable_params(), strict=True):
            average.set_data(average + (weight - average) / self.number)
        return loss


@job(Told("number"), "graph")
def weights_averaged_by_a_plain_count(run):
    Counted(run, accumulating(), slices()).fit()


def functional(run, forward, network, loader=None, **stateful):
    optimizer = adam(network)
    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(*batch):
        value, grads = gradients(*batch)
        optimizer(grads)
        return value

    batches = ck.data.resumable(loader if loader is not None else slices(), EPOCHS)
    run.loop([network, optimizer], batches, step, **stateful)


@job(Exact(), "pynative")
def gradient_noise_by_mindspores_generator(run):
    network = Net().set_train()
    optimizer = adam(network)
    gradients = ms.value_and_grad(lambda x, y: ops.cross_entropy(network(x), y), None, optimizer.parameters)

    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(tuple(grad + 0.01 * ops.randn_like(grad) for grad in grads))
        return value

    run.loop([network, optimizer], ck.data.resumable(slices(), EPOCHS), step)


@job(Exact(), "pynative")
def gradient_penalty_of_a_critic(run):
    critic = nn.SequentialCell(nn.Dense(FEATURES, 8), nn.Tanh(), nn.Dense(8, 1)).set_train()
    slope = ops.grad(lambda x: critic(x).sum())

    def forward(x, y):
        between = x + ops.rand_like(x)
        norm = ops.sqrt((slope(between) ** 2).sum(1) + 1e-6)
        return critic(x).mean() - critic(between).mean() + ((norm - 1) ** 2).mean()

    functional(run, forward, critic)


@job(Exact(), "pynative")
def smoothing_by_the_epoch_of_the_batches(run):
    network = Net().set_train()
    batches = ck.data.resumable(slices(), EPOCHS)
    optimizer = adam(network)

    def forward(x, y, smoothing):
        return ops.cross_entropy(network(x), y) * (1 - smoothing) - smoothing * ops.log_softmax(network(x)).mean()

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x, y):
        value, grads = gradients(x, y, ms.Tensor(0.1 * batches.epoch, ms.float32))
        optimizer(grads)
        return value

    run.loop([network, optimizer], batches, step)


@job(Exact(), "pynative")
def layers_dropped_more_often_as_it_goes(run):
    """Stochastic depth, by the number of the batch."""

    class Deep(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = nn.CellList([nn.Dense(FEATURES, FEATURES) for _ in range(3)])
            self.out, self.rate = nn.Dense(FEATURES, 3), 0.0

        def construct(self, x, y):
            for layer in self.layers:
                if np.random.random() >= self.rate:
                    x = x + ops.tanh(layer(x))
            return ops.cross_entropy(self.out(x), y)

    cell = accumulating(Deep())
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered):
            cell.network.rate = at / 20
            run.step((x, y), cell(x, y), cell=cell)
            manager.step(state)


class Levels:
    """A curriculum: more classes with each epoch, counted by the loader itself."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        x, y = arrays()
        for first in range(0, SAMPLES, BATCH):
            part = slice(first, first + BATCH)
            yield ms.Tensor(x[part]), ms.Tensor(np.minimum(y[part], self.epoch))


@job(Exact(), "graph")
def curriculum_that_the_loader_counts(run):
    run.loop(cell := accumulating(), ck.data.resumable(Levels(), EPOCHS), cell)


class Settable(Levels):
    def __iter__(self):
        x, y = arrays()
        for first in range(0, SAMPLES, BATCH):
            part = slice(first, first + BATCH)
            yield ms.Tensor(x[part]), ms.Tensor(np.minimum(y[part], self.epoch))


@job(Refused(("did not give the same", "state_dict"), "resume"), "graph")
def curriculum_that_the_loop_sets(run):
    cell, loader = accumulating(), Settable()
    batches = ck.data.resumable(loader, EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            run.step((x, y), cell(x, y), cell=cell)
            loader.epoch = 1 + batches.epoch
            manager.step(state)


@job(Told("teacher"), "pynative")
def teacher_of_arrays_that_follows(run):
    network, shadow = Net().set_train(), Net()
    for number, parameter in enumerate(shadow.get_parameters()):
        parameter.name = f"shadow.{number}"
    optimizer = adam(network)

    def forward(x, y):
        out = network(x)
        return ops.cross_entropy(out, y) + ((out - ops.stop_gradient(shadow(x))) ** 2).mean()

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)
    teacher = [parameter.asnumpy().copy() for parameter in network.get_parameters()]
    batches = ck.data.resumable(rows(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager([network, optimizer, shadow], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            value, grads = gradients(x, y)
            optimizer(grads)
            teacher = [0.9 * t + 0.1 * w.asnumpy() for t, w in zip(teacher, network.get_parameters(), strict=True)]
            for parameter, array in zip(shadow.get_parameters(), teacher, strict=True):
                parameter.set_data(ms.Tensor(array))
            run.step((x, y), value, cells=[network, optimizer, shadow])
            manager.step(state)


@job(Exact(), "pynative")
def layers_trained_from_the_second_epoch_on(run):
    """Progressive unfreezing in a loop: the epoch of the batches decides."""
    network = Net().set_train()
    batches = ck.data.resumable(slices(), EPOCHS)
    optimizer = adam(network)
    gradients = ms.value_and_grad(lambda x, y: ops.cross_entropy(network(x), y), None, optimizer.parameters)

    def step(x, y):
        value, grads = gradients(x, y)
        if batches.epoch == 0:
            grads = tuple(
                ops.zeros_like(grad) if "hidden" in weight.name else grad
                for grad, weight in zip(grads, optimizer.parameters, strict=True)
            )
        optimizer(grads)
        return value

    run.loop([network, optimizer], batches, step)


@job(Exact(), "pynative")
def noise_by_the_number_of_the_batch(run):
    cell = accumulating(Loss())
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered):
            noise = np.random.default_rng((1, at)).standard_normal(x.shape)
            run.step((x, y), cell(x + ms.Tensor(noise, ms.float32), y), cell=cell)
            manager.step(state)
