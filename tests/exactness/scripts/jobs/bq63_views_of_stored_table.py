# differs, named
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(3)


def make_data(n=96, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] + 0.2 * rng.normal(size=(n, 1))).astype(np.float32)
    return x, y


def pipeline(n=96, seed=1):
    return ds.NumpySlicesDataset(make_data(n, seed), ["x", "y"], shuffle=True).batch(8)


def make_net():
    return nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


class Memory:
    def __init__(self, n):
        self.table = np.ones((n, 2))  # loss, age


class Weighting:
    def __init__(self, memory):
        self.losses = memory.table[:, 0]
        self.ages = memory.table[:, 1]

    def __call__(self, at, loss):
        self.ages += 1
        self.ages[at] = 0
        self.losses[at] = 0.5 * self.losses[at] + 0.5 * loss
        return float(self.losses[at] / self.losses.mean())


net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
forward = lambda x, y, w: w * ops.mse_loss(net(x), y)
grad_fn = ms.value_and_grad(forward, None, opt.parameters)
memory = Memory(12)
weighting = Weighting(memory)
X, Y = make_data()
rows = [(Tensor(X[i : i + 8]), Tensor(Y[i : i + 8])) for i in range(0, 96, 8)]
state = ck.StateManager([net, opt], ck.data.resumable(rows, epochs=3), memory=ck.attributes(memory, "table"))
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(state):
    weight = weighting(number % 12, float(ops.mse_loss(net(x), y)))
    loss, grads = grad_fn(x, y, weight)
    opt(grads)
os._exit(0)
