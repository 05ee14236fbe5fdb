# truth: exact
# class: attribute
# A train cell with its own loss-scale automaton: scale, good steps and skipped steps are Parameters; Model.train in GRAPH.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, nn, ops

import ckptkit as ck

ms.set_seed(65)
ms.set_context(mode=ms.GRAPH_MODE)


def scalar(value, name):
    return Parameter(ms.Tensor(value, ms.float32), name=name, requires_grad=False)


class ScaledStep(nn.Cell):
    """loss scaling whose scale also damps the update: lr_eff = 1 / (1 + good / 10)"""

    def __init__(self, network, lr=0.1, window=4):
        super().__init__(auto_prefix=False)
        self.network = network.set_grad()
        self.weights = ms.ParameterTuple(network.trainable_params())
        self.scale = scalar(1024.0, "amp_scale")
        self.good = scalar(0.0, "amp_good")
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.lr, self.window = lr, window

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y, self.scale + 0.0)
        damp = self.lr / (1.0 + self.good / 10.0)
        norm = 0.0
        for g in grads:
            norm = norm + ops.square(g / self.scale).sum()
        fine = ops.cast(norm < 0.5, ms.float32)
        for w, g in zip(self.weights, grads):
            ops.assign(w, w - fine * damp * g / self.scale)
        good = fine * (self.good + 1.0)
        full = ops.cast(good >= self.window, ms.float32)
        ops.assign(self.scale, self.scale * (fine * (1.0 + full) + (1.0 - fine) * 0.5))
        ops.assign(self.good, good * (1.0 - full))
        return loss


def prepare():
    r = np.random.RandomState(65)
    x = r.randn(56, 8).astype(np.float32)
    y = np.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3]], 1).astype(np.float32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)


net = nn.WithLossCell(nn.SequentialCell(nn.Dense(8, 16), nn.Tanh(), nn.Dense(16, 2)), nn.MSELoss())
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(ScaledStep(net)), 3, prepare())
os._exit(0)
