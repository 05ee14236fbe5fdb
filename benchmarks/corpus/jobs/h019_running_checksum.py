# truth: differs
# class: attribute
# A crc32 is chained over all batches (as a cheap deterministic dice); its bits decide which columns are flipped.

import os
import zlib

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(53)


class ChainedDice:
    def __init__(self):
        self.crc = 0

    def roll(self, payload, sides):
        self.crc = zlib.crc32(payload, self.crc)
        return self.crc % sides


def flip(x, dice):
    width = x.shape[1]
    column = dice.roll(memoryview(x).cast("B"), width)
    x = x.copy()
    x[:, column] *= -1
    x[:, (column + 3) % width] = 0
    return x


data = np.random.RandomState(8)
pairs = []
for _ in range(8):
    x = data.randn(8, 8).astype(np.float32)
    pairs.append((x, (np.abs(x).sum(1) > 6.3).astype(np.int32)))

net = nn.SequentialCell(nn.Dense(8, 12), nn.ReLU(), nn.Dense(12, 2))
optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer, 2)
cell.set_train()
dice = ChainedDice()

batches = ck.data.resumable(pairs, epochs=3)
manager = ck.CheckpointManager(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
with manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, label in batches:
        cell(ms.Tensor(flip(x, dice)), ms.Tensor(label))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
