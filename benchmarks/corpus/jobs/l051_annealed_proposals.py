# truth: differs
# class: attribute
# Simulated annealing of a small network: proposals and coins come from the global generators, the temperature cools with each acceptance.

import math
import os
import random

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4151)
np.random.seed(51)
random.seed(51)


class Annealer:
    def __init__(self, start=0.5, cooling=0.93):
        self.temperature, self.cooling = start, cooling

    @property
    def reach(self):
        return 0.3 * math.sqrt(self.temperature)

    def accepts(self, old, new):
        good = new <= old or random.random() < math.exp((old - new) / self.temperature)
        self.temperature *= self.cooling if good else 0.99
        return good


def error(net, x, y):
    return float(((net(x) - y) ** 2).mean().asnumpy())


r = np.random.RandomState(151)
rows = []
for _ in range(8):
    x = r.randn(8, 3).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.tanh(2 * x[:, :1] - x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 1))
annealer = Annealer()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        for _ in range(4):
            before = error(net, x, y)
            old = [p.asnumpy().copy() for p in net.trainable_params()]
            for p in net.trainable_params():
                ops.assign(p, p + ms.Tensor(annealer.reach * np.random.randn(*p.shape), ms.float32))
            if not annealer.accepts(before, error(net, x, y)):
                for p, value in zip(net.trainable_params(), old):
                    ops.assign(p, ms.Tensor(value))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
