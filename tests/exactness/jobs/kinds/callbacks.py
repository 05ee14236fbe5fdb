"""Callbacks with something of their own."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, LambdaCallback, LossMonitor, Model, TimeMonitor

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named, Refused, Told
from exactness.jobs.parts import EPOCHS, K, Loss, Net, accumulating, adam, slices, train


class WarmRestarts(Callback):
    """The learning rate falls, and is raised again after each fourth step that it has counted."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.since = 0

    def on_train_step_end(self, run_context):
        self.since = (self.since + 1) % 4
        self.rate.set_data(ms.Tensor(0.02 / (1 + self.since), ms.float32))


class StoredRestarts(WarmRestarts):
    def state_dict(self):
        return {"since": self.since}

    def load_state_dict(self, state):
        self.since = state["since"]


@job(Named("WarmRestarts"), "graph")
def warm_restarts_counted_in_an_attribute(run):
    loss = Loss()
    optimizer = adam(loss)
    train(run, loss, optimizer, callbacks=[WarmRestarts(optimizer.learning_rate)])


@job(Exact(), "graph")
def warm_restarts_given_by_name(run):
    loss = Loss()
    optimizer = adam(loss)
    restarts = StoredRestarts(optimizer.learning_rate)
    train(run, loss, optimizer, callbacks=[restarts], stateful={"restarts": restarts})


class Unfreeze(Callback):
    """Trains the first layer from the fifth step on."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def on_train_begin(self, run_context):
        for parameter in self.layer.get_parameters():
            parameter.requires_grad = False

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 5:
            for parameter in self.layer.get_parameters():
                parameter.requires_grad = True


@job(Told("requires_grad"), "pynative")
def gradual_unfreezing(run):
    loss = Loss().set_train()
    optimizer = adam(loss)
    gradients = ms.value_and_grad(loss, None, optimizer.parameters)

    class Step(nn.Cell):
        def __init__(self):
            super().__init__()
            self.loss, self.optimizer = loss, optimizer

        def construct(self, x, y):
            value, grads = gradients(x, y)
            kept = [
                one if w.requires_grad else ops.zeros_like(one)
                for one, w in zip(grads, optimizer.parameters, strict=True)
            ]
            optimizer(tuple(kept))
            return value

    run.train(Model(Step()), EPOCHS, slices(), [Unfreeze(loss.network.hidden)])


class FreezeNorm(Callback):
    """Statistics stay as they are from the fifth step on."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 5:
            self.norm.set_train(False)


@job(Told("set_train"), "pynative")
def statistics_frozen_in_mid_run(run):
    loss = Loss(nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dense(8, 3)))
    train(run, loss, callbacks=[FreezeNorm(loss.network[1])])


class Averaging(Callback):
    """Averages the weights, and evaluates with the averages in their place."""

    def __init__(self, weights, averages):
        super().__init__()
        self.weights, self.averages = weights, averages

    def swap(self):
        for weight, average in zip(self.weights, self.averages, strict=True):
            kept = weight.asnumpy().copy()
            weight.set_data(ms.Tensor(average.asnumpy()))
            average.set_data(ms.Tensor(kept))

    def on_train_step_end(self, run_context):
        for weight, average in zip(self.weights, self.averages, strict=True):
            average.set_data(0.9 * average + 0.1 * weight)

    def on_eval_begin(self, run_context):
        self.swap()

    def on_eval_end(self, run_context):
        self.swap()


class Evaluation(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x, y):
        out = self.network(x)
        return ops.cross_entropy(out, y), out, y


class WithAverages(Loss):
    def __init__(self):
        super().__init__()
        self.averages = ms.ParameterTuple(self.network.trainable_params()).clone("averages", "same")
        for average in self.averages:
            average.requires_grad = False


@job(Exact(), "graph")
def averages_swapped_in_for_the_evaluation(run):
    loss = WithAverages()
    optimizer = adam(loss.network)
    cell = accumulating(loss, optimizer)
    model = Model(cell, eval_network=Evaluation(loss.network), eval_indexes=[0, 1, 2], metrics={"accuracy"})
    averaging = Averaging(list(optimizer.parameters), list(loss.averages))
    run.callback().fit(model, EPOCHS, slices(), slices(), callbacks=[averaging])


@job(Named("Averaging"), "graph")
def averages_kept_by_the_callback_alone(run):
    loss = Loss()
    optimizer = adam(loss)
    averages = optimizer.parameters.clone("averages", "same")
    train(run, loss, optimizer, [Averaging(list(optimizer.parameters), averages)], watched={"averages": averages})


@job(Exact(), "graph")
def averages_given_by_name(run):
    loss = Loss()
    optimizer = adam(loss)
    averages = optimizer.parameters.clone("averages", "same")
    averaging = Averaging(list(optimizer.parameters), averages)
    train(run, loss, optimizer, [averaging], watched={"averages": averages}, stateful={"averages": averages})


@job(Told("rewind"), "graph")
def averages_of_every_micro_step_rewound(run):
    """What a callback changes at each micro-step would be changed twice."""
    loss = WithAverages()
    optimizer = adam(loss.network)
    averaging = Averaging(list(optimizer.parameters), list(loss.averages))
    train(run, loss, optimizer, [averaging], mid_cycle="rewind")


class Patience(Callback):
    """Stops after the third loss in a row that is not the best."""

    def __init__(self):
        super().__init__()
        self.best, self.bad = float("inf"), 0

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        loss = float(params.net_outputs.asnumpy())
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(loss, self.best)
        if self.bad == 4:
            run_context.request_stop()


@job(Named("Patience", differs=None), "graph", kill=5)
def early_stop_with_patience_in_an_attribute(run):
    train(run, callbacks=[Patience()])


class Smooth(Callback):
    """Shows an average of the losses."""

    def __init__(self):
        super().__init__()
        self.average = None

    def on_train_step_end(self, run_context):
        loss = float(run_context.original_args().net_outputs.asnumpy())
        self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
        print(self.average)


@job(Exact(), "graph")
def loggers_only(run):
    train(run, callbacks=[Smooth(), LossMonitor(3), TimeMonitor(), LambdaCallback(on_train_epoch_end=print)])


class Alpha(Callback):
    """The share of a loss, by the epoch: a plain attribute of the cell."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def on_train_epoch_begin(self, run_context):
        self.loss.alpha = 0.5 * run_context.original_args().cur_epoch_num


class Shared(Loss):
    def __init__(self):
        super().__init__()
        self.alpha = 0.0

    def construct(self, x, y):
        out = self.network(x)
        return ops.cross_entropy(out, y) + self.alpha * (out**2).mean()


@job(Exact(), "pynative")
@job(Named("sets network.alpha"), "graph")
def loss_weight_set_by_the_epoch(run):
    loss = Shared()
    train(run, loss, callbacks=[Alpha(loss)])


class AlphaByStep(Alpha):
    """The same in the middle of an epoch."""

    def on_train_epoch_begin(self, run_context):
        pass

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 10:
            self.loss.alpha = 1.0


@job(Named("AlphaByStep"), "pynative")
def loss_weight_switched_in_mid_epoch(run):
    loss = Shared()
    train(run, loss, callbacks=[AlphaByStep(loss)])


class Clip(Callback):
    """Keeps the weights small, as a critic's have to be."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def on_train_step_end(self, run_context):
        for weight in self.weights:
            weight.set_data(ops.clamp(weight, -0.3, 0.3))


@job(Exact(), "graph")
def weights_clipped_after_each_step(run):
    loss = Loss()
    train(run, loss, callbacks=[Clip(loss.trainable_params())])


class Noise(Callback):
    """Adds noise to the weights, from a generator of its own."""

    def __init__(self, weights, rng):
        super().__init__()
        self.weights, self.rng = weights, rng

    def on_train_step_end(self, run_context):
        for weight in self.weights:
            noise = self.rng.standard_normal(weight.shape) * 0.01
            weight.set_data(weight + ms.Tensor(noise, ms.float32))


class StoredNoise(Noise):
    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


@job(Named("Noise"), "graph")
def noise_from_a_generator_in_an_attribute(run):
    loss = Loss()
    train(run, loss, callbacks=[Noise(loss.trainable_params(), np.random.default_rng(0))])


@job(Exact(), "graph")
def noise_from_a_stored_generator(run):
    loss = Loss()
    noise = StoredNoise(loss.trainable_params(), np.random.default_rng(0))
    train(run, loss, callbacks=[noise], stateful={"noise": noise})


@job(Exact(), "graph")
def noise_from_numpys_global_generator(run):
    loss = Loss()
    train(run, loss, callbacks=[Noise(loss.trainable_params(), np.random.mtrand._rand)])


@job(Refused(("set_data", "ops.assign"), after=6), "pynative")
def weights_replaced_between_steps(run):
    """MindSpore's optimizer does not update a weight any more once set_data replaced it, until a resume."""
    loss = Loss()
    train(run, loss, callbacks=[Clip(loss.trainable_params())])


def counting():
    seen = [0]

    def after(run_context):
        seen[0] += 1
        run_context.original_args().train_network.optimizer.learning_rate.set_data(
            ms.Tensor(0.05 / seen[0], ms.float32)
        )

    return after


@job(Named("LambdaCallback"), "graph")
def closure_that_counts_in_a_lambda_callback(run):
    train(run, callbacks=[LambdaCallback(on_train_step_end=counting())])


class Droppy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.dropout = Net(8), ck.nn.Dropout(p=0.5, seed=1)
        self.out = nn.Dense(8, 3)

    def construct(self, x, y):
        return ops.cross_entropy(self.out(self.dropout(self.network(x))), y)


class LessDropout(Callback):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout

    def on_train_epoch_begin(self, run_context):
        self.dropout.p = 0.5 / run_context.original_args().cur_epoch_num


@job(Exact(), "pynative")
def dropout_rate_that_falls_by_epochs(run):
    loss = Droppy()
    run.train(Model(ck.AccumulationTrainCell(loss, adam(loss), K)), EPOCHS, slices(), [LessDropout(loss.dropout)])


class Finder(Callback):
    """Raises the rate by a factor at every step, and lets training end where the loss has doubled."""

    def __init__(self, rate):
        super().__init__()
        self.rate, self.best = rate, float("inf")

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.best = min(self.best, float(params.net_outputs.asnumpy()))
        self.rate.set_data(ms.Tensor(1e-3 * 1.5**params.cur_step_num, ms.float32))


@job(Named("Finder", differs=False), "graph")
def rate_finder(run):
    loss = Loss()
    optimizer = adam(loss)
    train(run, loss, optimizer, [Finder(optimizer.learning_rate)])
