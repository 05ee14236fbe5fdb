# truth: differs
# class: attribute
# the running average of weights and its count are in a plain object; every sixth step the weights are set to it

import operator
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.03, 0.9)


def forward_fn(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


@ms.jit
def train_step(x, y):
    loss, grads = grad_fn(x, y)
    optimizer(grads)
    return loss


class WeightAverage:
    __slots__ = ("mean", "n")

    def __init__(self):
        self.mean, self.n = {}, 0

    def update(self, named):
        self.n += 1
        for name, value in named:
            old = self.mean.setdefault(name, np.zeros_like(value))
            old += (value - old) / self.n

    def copy_to(self, params):
        for p in params:
            ops.assign(p, Tensor(self.mean[p.name].copy()))


def snapshot(params):
    return map(operator.methodcaller("copy"), (p.asnumpy() for p in params))


average = WeightAverage()
params = net.trainable_params()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered + 1):
        train_step(x, y)
        average.update(zip((p.name for p in params), snapshot(params)))
        if step % 6 == 0:
            average.copy_to(params)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
