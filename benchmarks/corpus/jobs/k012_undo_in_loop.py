# truth: refused
# class: attribute
# Of the last updates, objects in a deque, all are undone in a for loop if the loss has doubled.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
import collections

import ckptkit as ck

ms.set_seed(313)


class Update:
    def __init__(self, grads):
        self.deltas = [g.asnumpy() * 0.05 for g in grads]

    def apply(self):
        for p, d in zip(net.trainable_params(), self.deltas):
            p.set_data(ms.Tensor(p.asnumpy() - d))
        return self

    def revert(self):
        for p, d in zip(net.trainable_params(), self.deltas):
            p.set_data(ms.Tensor(p.asnumpy() + d / 2))


net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(313)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    done, best = collections.deque(maxlen=3), float("inf")
    for x, y in batches:
        manager.fence()
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        now = float(loss.asnumpy())
        if now > 1.2 * best:
            for update in reversed(done):
                update.revert()
        best = min(best * 1.05, now)
        done.append(Update(grads).apply())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
