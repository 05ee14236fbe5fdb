"""Half precision and what belongs to it."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import amp, nn, ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Told
from exactness.jobs.parts import EPOCHS, K, Loss, Net, adam, rows, slices


@job(Exact(), "graph")
def half_precision_of_model(run):
    network = Net()
    manager = ms.FixedLossScaleManager(128.0, drop_overflow_update=False)
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = ms.Model(network, loss_fn, adam(network), amp_level="O2", loss_scale_manager=manager)
    run.train(model, EPOCHS, slices())


@job(Exact(), "graph")
def half_precision_with_scaling_cell(run):
    loss = amp.auto_mixed_precision(Loss(), "O2")
    scaler = amp.DynamicLossScaler(2.0**14, 2, 2)
    cell = ck.AccumulationTrainCell(
        loss, nn.Momentum(loss.trainable_params(), 0.01, 0.9), K, loss_scaler=scaler, clip_norm=1.0
    )
    run.train(ms.Model(cell), EPOCHS, slices())


class ScaledByHand:
    """Grows after three good steps, and is halved at an overflow; plain numbers."""

    def __init__(self):
        self.value, self.good = 2.0**16, 0

    def adjusted(self, finite):
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good == 3:
            self.value, self.good = self.value * 2, 0


class Stored(ScaledByHand):
    def state_dict(self):
        return {"value": self.value, "good": self.good}

    def load_state_dict(self, state):
        self.value, self.good = state["value"], state["good"]


def scaled(run, scale, named):
    loss = Loss().to_float(ms.float16).set_train()
    optimizer = nn.Momentum(loss.trainable_params(), 0.05, 0.9)
    gradients = ms.value_and_grad(
        lambda x, y, factor: loss(x, y).astype(ms.float32) * factor, None, optimizer.parameters
    )

    def step(x, y):
        value, grads = gradients(x, y, ms.Tensor(scale.value, ms.float32))
        finite = bool(amp.all_finite(grads))
        if finite:
            optimizer(tuple(grad / scale.value for grad in grads))
        scale.adjusted(finite)
        return value

    run.loop([loss, optimizer], ck.data.resumable(rows(), EPOCHS), step, **({"scale": scale} if named else {}))


@job(Exact(), "pynative")
def scale_by_hand_that_is_stored(run):
    scaled(run, Stored(), named=True)


@job(Told("scale"), "pynative")
def scale_by_hand_that_is_forgotten(run):
    scaled(run, ScaledByHand(), named=False)


@job(Exact(), "pynative")
def master_weights_of_half_precision(run):
    """Weights are float16; their float32 originals are what the optimizer has."""
    network = Loss().to_float(ms.float16).set_train()
    half = list(network.trainable_params())
    masters = ms.ParameterTuple([ms.Parameter(w.astype(ms.float32), name=f"master.{w.name}") for w in half])
    optimizer = nn.Adam(masters, 1e-2)
    gradients = ms.value_and_grad(network, None, half)

    def step(x, y):
        value, grads = gradients(x, y)
        optimizer(tuple(grad.astype(ms.float32) for grad in grads))
        for weight, master in zip(half, masters, strict=True):
            weight.set_data(master.astype(ms.float16).astype(ms.float32))
        return value

    run.loop([network, optimizer], ck.data.resumable(rows(), EPOCHS), step)


class Checked(nn.Cell):
    """A train cell with `amp.LossScaler` inside, as tutorials have it."""

    def __init__(self, loss, optimizer, scaler):
        super().__init__()
        self.loss, self.optimizer, self.scaler = loss, optimizer, scaler
        self.differentiate = ms.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, x, y):
        return self.scaler.scale(self.loss(x, y))

    def construct(self, x, y):
        value, grads = self.differentiate(x, y)
        grads = self.scaler.unscale(grads)
        finite = amp.all_finite(grads)
        if finite:
            value = ops.depend(value, self.optimizer(grads))
        self.scaler.adjust(finite)
        return self.scaler.unscale(value)


@job(Told("scaler"), "pynative")
def scaler_as_an_attribute_of_the_cell(run):
    loss = Loss()
    run.train(ms.Model(Checked(loss, adam(loss), amp.DynamicLossScaler(2.0**10, 2, 3))), EPOCHS, slices())


@job(Exact(), "pynative")
def scaler_as_an_attribute_given_by_name(run):
    loss, scaler = Loss(), amp.DynamicLossScaler(2.0**10, 2, 3)
    run.train(ms.Model(Checked(loss, adam(loss), scaler)), EPOCHS, slices(), stateful={"scaler": scaler})


SINKING = np.full(1000, 1.4e-38, np.float32)  # denormal after the second update


class Idle(nn.Cell):
    """A loss with a weight that has no gradient, as a row of an embedding has for words that do not come."""

    def __init__(self):
        super().__init__()
        self.loss = Loss()
        self.idle = ms.Parameter(ms.Tensor(np.ones(1000, np.float32)), name="idle")

    def construct(self, x, y):
        return self.loss(x, y) + 0.0 * self.idle.sum()


@job(Exact(), "graph", default=True)
def denormal_moments(run):
    loss = Idle()
    optimizer = nn.AdamWeightDecay(loss.trainable_params(), 1e-2)
    next(one for one in optimizer.moments1 if one.size == SINKING.size).set_data(ms.Tensor(SINKING))
    run.train(ms.Model(ck.AccumulationTrainCell(loss, optimizer, K)), EPOCHS, slices())


class Decay(nn.Cell):
    def __init__(self):
        super().__init__()
        self.moments = ms.Parameter(ms.Tensor(SINKING), name="moments")

    def construct(self, x):
        self.moments = self.moments * 0.9
        return self.moments.sum() + x.sum()


def decay(run, *, compiled=False):
    cell = Decay()
    step = ms.jit(cell.construct) if compiled else cell
    run.loop([cell], ck.data.resumable(rows(), EPOCHS), lambda x, y: step(x))


@job(Exact(), "pynative", kill=4)
@job(Exact(), "graph", kill=4)
def denormal_moments_of_an_optimizer_by_hand(run):
    decay(run)


@job(Exact(), "pynative", kill=4)
def denormal_moments_after_an_operation(run):
    """MindSpore has threads before the run begins."""
    (ms.Tensor([1.0]) * 2).asnumpy()
    decay(run)


@job(Exact(), "pynative", kill=4)
def denormal_moments_in_compiled_code_after_an_operation(run):
    (ms.Tensor([1.0]) * 2).asnumpy()
    decay(run, compiled=True)
