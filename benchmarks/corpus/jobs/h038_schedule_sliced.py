# truth: exact
# class: random
# The schedule of the penalty is chain() of repeat() and a generator; a start cuts off what is past with islice from what restore returns.

import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(86)


def ramp(start, stop, n):
    for i in range(n):
        yield start + (stop - start) * i / n


def schedule():
    return itertools.chain(itertools.repeat(0.0, 5), ramp(0.0, 0.1, 9), itertools.repeat(0.1))


class Penalized(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Dense(6, 10)
        self.out = nn.Dense(10, 1)

    def construct(self, x, y, strength):
        h = ops.relu(self.hidden(x))
        return ((self.out(h) - y) ** 2).mean() + strength * h.mean()


loss = Penalized()
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.01), 3).set_train()
r = np.random.RandomState(68)
rows = []
for _ in range(8):
    x = r.randn(6, 6).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(x[:, 2:3] * x[:, 3:4])))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    strengths = itertools.islice(schedule(), point.batches_delivered, None)
    for (x, y), strength in zip(batches, strengths):
        cell(x, y, ms.Tensor(strength, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
