# truth: differs
# class: attribute
# A loss object whose margins live in a NamedTuple: each call makes the next one with _replace from the hardest errors seen.

import os
from typing import NamedTuple

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3135)


class Margins(NamedTuple):
    inner: float = 0.1
    outer: float = 1.0
    velocity: float = 0.0


class BandLoss:
    """zero inside of the band, squared up to the outer margin, linear beyond it"""

    def __init__(self):
        self.m = Margins()

    def _advance(self, worst):
        v = 0.7 * self.m.velocity + 0.3 * (worst - self.m.outer)
        self.m = self.m._replace(outer=max(0.2, self.m.outer + 0.3 * v), velocity=v)

    def __call__(self, prediction, target):
        e = ops.relu(ops.abs(prediction - target) - self.m.inner)
        cut = ops.minimum(e, ops.ones_like(e) * self.m.outer)
        loss = (cut * (2 * e - cut)).mean()
        self._advance(float(ops.stop_gradient(e).max().asnumpy()))
        return loss


class Regressor(nn.Cell):
    def __init__(self, criterion):
        super().__init__()
        self.net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
        self.criterion = criterion

    def construct(self, x, y):
        return self.criterion(self.net(x), y)


r = np.random.RandomState(35)
x = r.randn(32, 5).astype(np.float32)
y = (x[:, :1] + 0.5 * r.standard_cauchy((32, 1)).clip(-6, 6)).astype(np.float32)
network = Regressor(BandLoss())
cell = ck.AccumulationTrainCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.8), 1)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
os._exit(0)
