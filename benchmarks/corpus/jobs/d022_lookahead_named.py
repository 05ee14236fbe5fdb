# truth: exact
# class: attribute
# the slow weights are parameters of an own class with a plain counter; the object is given by name

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.02)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class SlowWeights:
    def __init__(self, parameters, k=4, alpha=0.5):
        self.slow = ParameterTuple(
            [Parameter(p.value().copy(), name=f"slow.{p.name}", requires_grad=False) for p in parameters]
        )
        self.k, self.alpha, self.counter = k, alpha, 0

    def after_update(self, parameters):
        self.counter += 1
        if self.counter < self.k:
            return
        self.counter = 0
        for s, p in zip(self.slow, parameters):
            ops.assign(s, s + self.alpha * (p - s))
            ops.assign(p, s.value().copy())


lookahead = SlowWeights(net.trainable_params())
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches, lookahead=lookahead)
    manager.restore(state)
    for x, y in batches:
        train_step(x, y)
        lookahead.after_update(net.trainable_params())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
