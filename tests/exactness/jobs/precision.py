"""Half precision, loss scales, and moments that are denormal."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import amp, nn

import ckptkit as ck
from exactness.jobs.parts import EPOCHS, K, Loss, Net, adam, rows, slices
from exactness.jobs.run import job


@job("graph")
def half_precision_of_model(run):
    network = Net()
    scale = ms.FixedLossScaleManager(128.0, drop_overflow_update=False)
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = ms.Model(network, loss_fn, adam(network), amp_level="O2", loss_scale_manager=scale)
    run.train(model, EPOCHS, slices())


@job("graph")
def half_precision_with_scaling_cell(run):
    loss = amp.auto_mixed_precision(Loss(), "O2")
    scaler = amp.DynamicLossScaler(2.0**14, 2, 2)
    optimizer = nn.Momentum(loss.trainable_params(), 0.01, 0.9)
    cell = ck.AccumulationTrainCell(loss, optimizer, K, loss_scaler=scaler, clip_norm=1.0)
    run.train(cell, EPOCHS, slices())


SINKING = np.full(1000, 1.4e-38, np.float32)  # denormal after the second update


class Idle(nn.Cell):
    """A loss with a weight that has no gradient, as a row of an embedding has for words that do not come."""

    def __init__(self):
        super().__init__()
        self.loss = Loss()
        self.idle = ms.Parameter(ms.Tensor(np.ones(1000, np.float32)), name="idle")

    def construct(self, x, y):
        return self.loss(x, y) + 0.0 * self.idle.sum()


@job("graph", default=True)
def denormal_moments(run):
    loss = Idle()
    optimizer = nn.AdamWeightDecay(loss.trainable_params(), 1e-2)
    next(moment for moment in optimizer.moments1 if moment.size == SINKING.size).set_data(ms.Tensor(SINKING))
    run.train(ck.AccumulationTrainCell(loss, optimizer, K), EPOCHS, slices())


class Decay(nn.Cell):
    def __init__(self):
        super().__init__()
        self.moments = ms.Parameter(ms.Tensor(SINKING), name="moments")

    def construct(self, x):
        self.moments = self.moments * 0.9
        return self.moments.sum() + x.sum()


@job("graph", kill=4)
def denormal_moments_of_an_optimizer_by_hand(run):
    cell = Decay()
    run.loop([cell], rows(), lambda x, y: cell(x))
