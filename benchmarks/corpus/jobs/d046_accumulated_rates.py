# truth: differs
# class: variable
# the rates come from itertools.accumulate, zipped with the batches, and begin anew at each start

import itertools
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


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward_fn(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


@ms.jit
def train_step(x, y):
    loss, grads = grad_fn(x, y)
    optimizer(grads)
    return loss


def exponential_rates(base, gamma, warmup):
    ramp = (base * (i + 1) / warmup for i in range(warmup))
    decay = itertools.accumulate(itertools.repeat(gamma), operator.mul, initial=base)
    return itertools.chain(ramp, decay)


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for (x, y), rate in zip(batches, exponential_rates(0.05, 0.92, 3)):
        ops.assign(optimizer.learning_rate, Tensor(rate, ms.float32))
        train_step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
