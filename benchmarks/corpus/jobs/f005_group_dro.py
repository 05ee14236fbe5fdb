# truth: exact, may be named
# class: attribute
# Group DRO: the groups' weights are a frozen dataclass that is replaced after every batch.

import os
from dataclasses import dataclass, field, replace
from typing import Tuple

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(2)


@dataclass(frozen=True)
class GroupWeights:
    q: Tuple[float, ...] = field(default=(0.25, 0.25, 0.25, 0.25))
    eta: float = 0.5

    def ascend(self, losses):
        raw = [w * np.exp(self.eta * l) for w, l in zip(self.q, losses)]
        total = sum(raw)
        return replace(self, q=tuple(r / total for r in raw))


class RobustLoss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = nn.SequentialCell(nn.Dense(7, 10), nn.ReLU(), nn.Dense(10, 1))

    def per_group(self, x, y):
        return ((self.net(x) - y) ** 2).reshape(4, -1).mean(axis=1)

    def construct(self, x, y, q):
        return (self.per_group(x, y) * q).sum()


def batches_of(n):
    g = np.random.default_rng(17)
    for _ in range(n):
        x = g.normal(size=(4, 3, 7)) * np.array([0.5, 1.0, 1.5, 2.0]).reshape(4, 1, 1)
        y = x.sum(-1, keepdims=True) * np.array([1.0, -1.0, 0.5, 2.0]).reshape(4, 1, 1)
        yield ms.Tensor(x.reshape(12, 7), ms.float32), ms.Tensor(y.reshape(12, 1), ms.float32)


data = list(batches_of(8))
loss_cell = RobustLoss()
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(loss_cell.trainable_params(), 0.01), 1, clip_norm=5.0)
cell.set_train()


def run(weights=GroupWeights()):
    batches = ck.data.resumable(data, epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for x, y in batches:
            group_losses = loss_cell.per_group(x, y).asnumpy().tolist()
            weights = weights.ascend(group_losses)
            cell(x, y, ms.Tensor(weights.q, ms.float32))
            manager.step(state)
        manager.save_final(state)


run()
os._exit(0)
