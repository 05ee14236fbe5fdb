# truth: differs
# class: attribute
# Costs per pair of classes follow MindSpore's ConfusionMatrix, which is updated with every batch and never cleared.

import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import ConfusionMatrix

import ckptkit as ck

ms.set_seed(78)
N = 3


class CostLoss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, label, cost):
        logits = self.net(x)
        expected = (ops.softmax(logits, -1) * cost).sum(-1).mean()
        return ops.cross_entropy(logits, label) + 0.5 * expected


class CostTable:
    def __init__(self):
        self.matrix = ConfusionMatrix(num_classes=N, normalize="no_norm")

    def of(self, logits, label):
        self.matrix.update(ms.Tensor(logits.argmax(1).astype(np.int32)), ms.Tensor(label))
        counts = np.asarray(self.matrix.eval(), np.float32)
        off = counts * (1 - np.eye(N, dtype=np.float32))
        share = off / (counts.sum(1, keepdims=True) + 1.0)
        return share[label].astype(np.float32)


rng = np.random.default_rng(31)
label = rng.integers(0, N, 64).astype(np.int32)
X = (rng.normal(size=(64, 8)) + np.eye(N, 8)[label]).astype(np.float32)
rows = [(X[i : i + 8], label[i : i + 8]) for i in range(0, 64, 8)]

net = nn.SequentialCell(nn.Dense(8, 8), nn.Tanh(), nn.Dense(8, N))
cell = ck.AccumulationTrainCell(CostLoss(net), nn.Adam(net.trainable_params(), 0.01), 2).set_train()
costs = CostTable()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        logits = net(ms.Tensor(x)).asnumpy()
        cell(ms.Tensor(x), ms.Tensor(y), ms.Tensor(costs.of(logits, y)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
