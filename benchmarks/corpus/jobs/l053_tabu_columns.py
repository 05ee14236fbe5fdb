# truth: differs
# class: attribute
# Coordinate descent with a tabu list: the column of largest gradient is moved, unless it was lately, and less the more often it was before.

import collections
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4153)


class TabuSearch:
    def __init__(self, tenure):
        self.recent = collections.deque(maxlen=tenure)
        self.often = collections.Counter()

    def choose(self, strengths):
        allowed = [c for c in range(len(strengths)) if c not in self.recent]
        column = max(allowed, key=lambda c: strengths[c] / (1 + self.often[c]))
        self.recent.append(column)
        self.often[column] += 1
        return column, 0.3 / (1 + self.often[column])


r = np.random.RandomState(53)
true = r.randn(8, 1)
rows = []
for _ in range(8):
    x = r.randn(10, 8).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x @ true).astype(np.float32))))
net, mse = nn.Dense(8, 1), nn.MSELoss()
gradient = ms.value_and_grad(lambda x, y: mse(net(x), y), None, [net.weight, net.bias])
tabu = TabuSearch(tenure=3)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        loss, (grad, slope) = gradient(x, y)
        grad = grad.asnumpy()
        column, rate = tabu.choose(np.abs(grad[0]))
        step = np.zeros_like(grad)
        step[0, column] = rate * grad[0, column]
        manager.fence()
        ops.assign(net.weight, net.weight - ms.Tensor(step))
        ops.assign(net.bias, net.bias - 0.05 * slope)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
