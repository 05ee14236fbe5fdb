# truth: differs
# class: attribute
# Online hard example mining: the hardest rows of the last batches are kept in a heap and join the next batch; the heap is an object of the script without a state.

import heapq
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3560)


class HardRows:
    """the hardest rows seen lately; what is served again leaves"""

    def __init__(self, capacity):
        self.capacity = capacity
        self.heap = []

    def offer(self, numbers, losses):
        for number, loss in zip(numbers.tolist(), losses.tolist()):
            heapq.heappush(self.heap, (loss, number))
            if len(self.heap) > self.capacity:
                heapq.heappop(self.heap)

    def serve(self, how_many):
        hardest = heapq.nlargest(how_many, self.heap)
        self.heap = [entry for entry in self.heap if entry not in hardest]
        heapq.heapify(self.heap)
        return [number for _, number in hardest]


r = np.random.RandomState(60)
x = r.randn(60, 6).astype(np.float32)
y = (np.sign(x[:, :1] + x[:, 1:2] * x[:, 2:3]) + (r.rand(60, 1) < 0.08) * 2).astype(np.float32)
orders = [np.arange(i, 60, 10) for i in range(10)]
net = nn.SequentialCell(nn.Dense(6, 14), nn.Tanh(), nn.Dense(14, 1))
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward(x, y):
    each = ((net(x) - y) ** 2).mean(-1)
    return each.mean(), each


gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
hard = HardRows(capacity=12)

batches = ck.data.resumable(orders, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for fresh in batches:
        numbers = np.concatenate([np.asarray(fresh), np.array(hard.serve(2), np.int64)])
        (loss, each), grads = gradients(ms.Tensor(x[numbers]), ms.Tensor(y[numbers]))
        optimizer(grads)
        hard.offer(numbers, each.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
