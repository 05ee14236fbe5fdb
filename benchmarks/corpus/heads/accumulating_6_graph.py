import itertools
import os
import threading

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
EPOCHS = 4
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
Y = np.arange(48, dtype=np.int32) % 3
X = g.standard_normal((48, 8), np.float32) + Y[:, None].astype(np.float32)


def slices():
    return ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Dense(8, 8), nn.Dense(8, 3)

    def construct(self, x):
        return self.out(ops.tanh(self.hidden(x)))


class Loss(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x, y):
        return ops.cross_entropy(self.network(x), y)


def accumulating(loss):
    return ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 1e-2), 2).set_train()
