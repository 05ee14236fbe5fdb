# truth: differs
# class: attribute
# Logit adjustment by label frequency; the counts are packed into a bytearray with struct and read through a memoryview.

import os
import struct

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(9)
CLASSES = 4


class PackedCounts:
    layout = struct.Struct(f"<{CLASSES}I")

    def __init__(self):
        self.raw = bytearray(self.layout.pack(*([1] * CLASSES)))
        self.cells = memoryview(self.raw).cast("I")

    def add(self, labels):
        for label in labels.tolist():
            self.cells[label] += 1

    def log_prior(self):
        counts = np.array(self.layout.unpack_from(self.raw), np.float32)
        return np.log(counts / counts.sum()).astype(np.float32)


class Adjusted(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, label, prior):
        return ops.cross_entropy(self.net(x) + prior, label)


net = nn.SequentialCell(nn.Dense(7, 9), nn.ReLU(), nn.Dense(9, CLASSES))
loss_cell = Adjusted(net)
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.01), 4, remainder="carry").set_train()
counts = PackedCounts()

r = np.random.RandomState(10)
label_all = r.choice(CLASSES, size=72, p=[0.6, 0.2, 0.15, 0.05]).astype(np.int32)
x_all = (r.randn(72, 7) + label_all[:, None] * 0.4).astype(np.float32)
rows = [(x_all[i : i + 8], label_all[i : i + 8]) for i in range(0, 72, 8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, label in batches:
        counts.add(label)
        cell(ms.Tensor(x), ms.Tensor(label), ms.Tensor(counts.log_prior()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
