# truth: refused or exact
# class: iterator
# Competence-based curriculum: the share of easy samples is a function of the step, which begins at what restore() says.

import itertools
import math
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(31)
TOTAL = 30
c0 = 0.3

rng = np.random.RandomState(7)
x_all = rng.uniform(-1, 1, (60, 5)).astype(np.float32)
y_all = np.sin(x_all.sum(1, keepdims=True)).astype(np.float32)
difficulty = np.argsort(np.abs(x_all).sum(1))
rank = np.empty(60)
rank[difficulty] = np.arange(60) / 60.0


def competence(t):
    return min(1.0, math.sqrt(t * (1 - c0**2) / TOTAL + c0**2))


class WeightedMSE(nn.Cell):
    def __init__(self, backbone):
        super().__init__(auto_prefix=True)
        self.backbone = backbone

    def construct(self, x, y, w):
        err = (self.backbone(x) - y) ** 2
        return (err * w).sum() / (w.sum() + 1e-6)


net = WeightedMSE(nn.SequentialCell([nn.Dense(5, 14), nn.Sigmoid(), nn.Dense(14, 1)]))
opt = nn.RMSProp(net.trainable_params(), learning_rate=0.01)
cell = ck.AccumulationTrainCell(net, opt, 3).set_train()

index_batches = [np.arange(i, i + 6) for i in range(0, 60, 6)]
batches = ck.data.resumable(index_batches, epochs=3)
manager = ck.CheckpointManager(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
state = ck.StateManager(cell, batches)
point = manager.restore(state)
for t, idx in zip(itertools.count(point.batches_delivered), batches):
    w = (rank[idx] <= competence(t)).astype(np.float32)[:, None] + 0.05
    loss = cell(ms.Tensor(x_all[idx]), ms.Tensor(y_all[idx]), ms.Tensor(w, ms.float32))
    manager.step(state, {"loss": loss})
manager.save_final(state)
manager.close()
os._exit(0)
