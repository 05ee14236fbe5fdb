"""Code that is called once per step and keeps something outside of cells and callbacks: closures, classes, modules."""

from __future__ import annotations

import collections
import contextvars
import threading

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, LearningRateScheduler

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named
from exactness.jobs.parts import BATCH, EPOCHS, K, Loss, Net, adam, slices, train


@job(Named("carries mean"), "pynative")
def forward_hook_that_centres_by_a_running_mean(run):
    loss, mean = Loss(), [0.0]

    def hook(cell, inputs, output):
        mean[0] = 0.9 * mean[0] + 0.1 * float(output.mean())
        return output - mean[0]

    loss.network.hidden.register_forward_hook(hook)
    train(run, loss)


class Damped:
    def __init__(self):
        self.calls = 0

    def __call__(self, cell, inputs, outputs):
        self.calls += 1
        return tuple(grad / self.calls for grad in inputs)


@job(Named("carries calls"), "pynative")
def backward_hook_that_damps_gradients(run):
    loss = Loss()
    loss.network.out.register_backward_hook(Damped())
    train(run, loss)


class Weighed(nn.Cell):
    def __init__(self, weigh):
        super().__init__()
        self.network, self.weigh = Net(), weigh

    def construct(self, x, y):
        return self.weigh(ops.cross_entropy(self.network(x), y))


def counted():
    calls = 0

    def weigh(loss):
        nonlocal calls
        calls += 1
        return loss / calls

    return weigh


@job(Named("carries calls"), "pynative")
def loss_by_a_closure_that_counts(run):
    train(run, Weighed(counted()))


class Annealed:
    def __init__(self):
        self.at = 0

    def __call__(self, loss):
        self.at += 1
        return loss / self.at


@job(Named("carries at"), "pynative")
def loss_weighed_by_a_schedule_object(run):
    train(run, Weighed(Annealed()))


SEEN = {"batches": 0}


def by_module(loss):
    SEEN["batches"] += 1
    return loss / SEEN["batches"]


@job(Named("carries SEEN"), "pynative")
def loss_weighed_by_a_dictionary_of_the_module(run):
    train(run, Weighed(by_module))


DRAWS = np.random.default_rng(3)


@job(Named("DRAWS"), "pynative")
def loss_weighed_by_a_generator_of_the_module(run):
    train(run, Weighed(lambda loss: loss * float(DRAWS.random())))


@job(Exact(), "pynative")
def tables_made_where_they_are_missing(run):
    """Caches, in each way that they are written; and a log."""
    tables, named, lines = {}, {}, []

    def table(size):
        if size in tables:
            return tables[size]
        tables[size] = ms.Tensor(np.linspace(0.5, 1, size), ms.float32)
        return tables[size]

    def by_name(name):
        try:
            return named[name]
        except KeyError:
            named[name] = 2.0
        return named[name]

    def weigh(loss):
        parts = [part * loss for part in table(3)]
        if len(lines) % 4 == 0:
            print(lines)
        lines.append(float(loss))
        for part in parts:
            loss = loss + part * by_name("scale")
        return loss

    train(run, Weighed(weigh))


def rate_of(run_context):
    return run_context.original_args().train_network.optimizer.learning_rate


def set_rate(run_context, count):
    rate_of(run_context).set_data(ms.Tensor(0.05 / count, ms.float32))


class OfClass(Callback):
    steps = 0

    def on_train_step_end(self, run_context):
        OfClass.steps += 1
        set_rate(run_context, OfClass.steps)


@job(Named("carries steps"), "graph")
def callback_that_counts_in_its_class(run):
    train(run, callbacks=[OfClass()])


STEPS = 0


class OfModule(Callback):
    def on_train_step_end(self, run_context):
        global STEPS  # noqa: PLW0603 - what is tried here
        STEPS += 1
        set_rate(run_context, STEPS)


@job(Named("carries STEPS"), "graph")
def callback_that_counts_in_its_module(run):
    train(run, callbacks=[OfModule()])


CONTEXT = contextvars.ContextVar("CONTEXT", default=0)


class OfContext(Callback):
    def on_train_step_end(self, run_context):
        CONTEXT.set(CONTEXT.get() + 1)
        set_rate(run_context, CONTEXT.get())


@job(Named("CONTEXT"), "graph")
def callback_that_counts_in_a_context_variable(run):
    train(run, callbacks=[OfContext()])


LOCAL = threading.local()


class OfThread(Callback):
    def on_train_step_end(self, run_context):
        LOCAL.steps += 1
        set_rate(run_context, LOCAL.steps)


@job(Named("carries steps"), "graph")
def callback_that_counts_in_a_thread_local(run):
    LOCAL.steps = 0
    train(run, callbacks=[OfThread()])


def falling():
    rates = []

    def rate(learning_rate, step):
        rates.append(learning_rate)
        return 0.05 / len(rates)

    return rate


@job(Named("carries rates"), "graph")
def rate_by_a_scheduler_with_a_closure(run):
    train(run, callbacks=[LearningRateScheduler(falling())])


SHOWN = []


class Shows(Callback):
    def on_train_step_end(self, run_context):
        SHOWN.append(float(run_context.original_args().net_outputs.asnumpy()))
        print(sum(SHOWN) / len(SHOWN))


@job(Exact(), "graph")
def callback_that_shows_what_its_module_keeps(run):
    train(run, callbacks=[Shows()])


class Kept(Annealed):
    pass


@job(Exact(), "pynative")
def schedule_object_given_by_its_attributes(run):
    weigh = Kept()
    train(run, Weighed(weigh), stateful={"weigh": ck.attributes(weigh, "at")})


class Ring(nn.Cell):
    """A queue that a method of its own changes in place."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.queue, self.place = ms.Tensor(np.ones((12, 3), np.float32)), 0

    def construct(self, x, y):
        out = self.network(x)
        loss = ops.cross_entropy(out, y) + ops.matmul(out, self.queue.T).mean()
        self.push(ops.stop_gradient(out))
        return loss

    def push(self, keys):
        self.queue[self.place : self.place + BATCH] = keys
        self.place = (self.place + BATCH) % 12


@job(Named("carries queue, place"), "pynative")
def queue_that_a_method_changes_in_place(run):
    train(run, Ring())


class Frequencies(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.seen = Net(), collections.Counter()

    def construct(self, x, y):
        self.seen.update(y.asnumpy().tolist())
        weights = ms.Tensor([1 / (1 + self.seen[one]) for one in range(3)], ms.float32)
        return ops.cross_entropy(self.network(x), y, weights)


@job(Named("carries seen"), "pynative")
def classes_counted_by_a_method_of_the_counter(run):
    train(run, Frequencies())


class ClippedByHistory(ck.AccumulationTrainCell):
    """Its rate follows the median of all norms so far."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.history = []

    def __call__(self, *batch):
        loss = super().__call__(*batch)
        if self.updated:
            self.history.append(float(self.gradient_norm))
            ops.assign(self.optimizer.learning_rate, ms.Tensor(0.01 * np.median(self.history), ms.float32))
        return loss


@job(Named("carries history"), "graph")
@job(Named("carries history"), "pynative")
def norms_kept_by_the_train_cell(run):
    loss = Loss()
    run.train(ms.Model(ClippedByHistory(loss, adam(loss), K)), EPOCHS, slices())


@job(Exact(), "pynative")
def norms_given_by_name(run):
    loss = Loss()
    cell = ClippedByHistory(loss, adam(loss), K)
    run.train(ms.Model(cell), EPOCHS, slices(), stateful={"norms": ck.attributes(cell, "history")})


class Rotary(nn.Cell):
    """A table that grows with the longest input, the features of this call by name, and a log."""

    def __init__(self):
        super().__init__()
        self.network, self.length, self.table = Net(), 0, None
        self.features, self.norms, self.calls = {}, [], {"forward": 0}

    def grow(self, length):
        self.length = length
        self.table = ms.Tensor(np.linspace(0.5, 1, length), ms.float32)

    def construct(self, x, y):
        if x.shape[1] > self.length:
            self.grow(x.shape[1])
        if self.training:
            self.calls["forward"] += 1
        self.features["x"] = x * self.table
        self.features["out"] = self.network(self.features["x"])
        self.norms.append(float(x.sum()))
        return ops.cross_entropy(self.features["out"], y)


@job(Exact(), "pynative")
def table_that_grows_and_features_of_the_call(run):
    train(run, Rotary())
