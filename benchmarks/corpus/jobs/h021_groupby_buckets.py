# truth: exact
# class: iterator
# Sequences are bucketed by length with sorted and itertools.groupby before training; the batches of each bucket are cut with islice.

import itertools
import operator
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(71)


def bucketed(samples, size):
    by_length = sorted(samples, key=operator.itemgetter(0))
    for length, group in itertools.groupby(by_length, key=operator.itemgetter(0)):
        while chunk := list(itertools.islice(group, size)):
            yield np.stack([s for _, s, _ in chunk]), np.array([[t] for _, _, t in chunk], np.float32)


class Mean(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Dense(4, 8)
        self.out = nn.Dense(8, 1)

    def construct(self, x, y):
        h = ops.tanh(self.embed(x)).mean(1)
        return ((self.out(h) - y) ** 2).mean()


r = np.random.RandomState(5)
samples = []
for i in range(45):
    n = 3 + int(r.randint(0, 4))
    seq = r.randn(n, 4).astype(np.float32)
    samples.append((n, seq, float(seq.max())))
rows = list(bucketed(samples, 7))

loss = Mean()
cell = ck.AccumulationTrainCell(
    loss, nn.Adam(loss.trainable_params(), 0.01), 3, normalize="samples", remainder="flush"
).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(x), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
