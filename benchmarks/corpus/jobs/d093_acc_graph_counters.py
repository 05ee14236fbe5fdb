# truth: exact
# class: random
# the weight enters the graph as a tensor that is computed from the cell's own counter of updates, which is stored

import math
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class KLAnnealed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Dense(8, 4), nn.Dense(4, 8)

    def construct(self, x, beta):
        z = ops.tanh(self.encode(x))
        return ((self.decode(z) - x) ** 2).mean() + beta * (z**2).mean()


class CyclicalBeta:
    def __init__(self, cell, period):
        self.cell, self.period = cell, period

    def __call__(self):
        phase = (self.cell.counters.updates % self.period) / self.period
        return Tensor(0.5 * (1 - math.cos(math.pi * phase)), ms.float32)


class Trainer:
    def __init__(self, network):
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        self.cell = ck.AccumulationTrainCell(network, optimizer, accumulation_steps={0: 1, 6: 2}).set_train()
        self.beta = CyclicalBeta(self.cell, 5)
        self.losses = []

    def fit(self, rows, epochs):
        batches = ck.data.resumable(rows, epochs=epochs)
        with ck.CheckpointManager(ROOT, **SAVE) as manager:
            state = ck.StateManager(self.cell, batches)
            manager.restore(state)
            for x, _ in batches:
                self.losses.append(self.cell(x, self.beta()))
                manager.step(state)
            manager.save_final(state)
        return float(np.mean([loss.asnumpy() for loss in self.losses]))


print("mean loss", Trainer(KLAnnealed()).fit(rows, 3))
os._exit(0)
