# truth: exact
# class: data
# A loader shuffles without a permutation: row number i of an epoch is (a * i + b) mod n, with a and b from the epoch; its whole state is one integer. GRAPH, K = 2.

import math
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4442)


class AffineOrder:
    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size
        self.multipliers = [a for a in range(5, len(x)) if math.gcd(a, len(x)) == 1]
        self.served = 0  # batches since the begin of the run

    def __len__(self):
        return len(self.x) // self.size

    def rows(self, number):
        epoch, place = divmod(number, len(self))
        a = self.multipliers[(7 * epoch + 3) % len(self.multipliers)]
        b = 11 * epoch
        return [(a * i + b) % len(self.x) for i in range(place * self.size, (place + 1) * self.size)]

    def __iter__(self):
        end = (self.served // len(self) + 1) * len(self)
        while self.served < end:
            rows = self.rows(self.served)
            self.served += 1
            yield self.x[rows], self.y[rows]

    def state_dict(self):
        return {"served": self.served}

    def load_state_dict(self, state):
        self.served = int(state["served"])


r = np.random.RandomState(42)
x = r.randn(48, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + np.sign(x[:, 2:3])).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(AffineOrder(x, y, 6), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for a, b in batches:
        cell(ms.Tensor(a), ms.Tensor(b))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
