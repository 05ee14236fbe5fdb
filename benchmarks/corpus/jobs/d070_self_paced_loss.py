# truth: differs
# class: attribute
# the callback raises the pace, a plain attribute of the loss cell, step by step

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class SelfPacedLoss(nn.Cell):
    def __init__(self, pace):
        super().__init__()
        self.pace = pace

    def construct(self, out, y):
        error = (out - y) ** 2
        easy = ops.stop_gradient((error < self.pace).astype(ms.float32))
        return (error * easy).sum() / (easy.sum() + 1.0) + error.mean() / self.pace


class Pacer(Callback):
    def __init__(self, growth):
        super().__init__()
        self.growth = growth

    def on_train_step_end(self, run_context):
        loss_cell = run_context.original_args().loss_fn
        loss_cell.pace = loss_cell.pace * self.growth


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, SelfPacedLoss(0.5), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Pacer(1.1)])
os._exit(0)
