# truth: differs
# class: variable
# Temporal differences: itertools.pairwise over the batches gives each together with the one before, the first of a start with itself.

import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(54)


def with_previous(batches):
    """(previous, current) for each batch; nothing is read ahead"""
    yield from itertools.pairwise(itertools.chain([None], batches))


r = np.random.RandomState(18)
walk = r.randn(8, 6, 5).cumsum(0).astype(np.float32)
goal = walk.mean(-1, keepdims=True).astype(np.float32)

net = nn.SequentialCell(nn.Dense(10, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(list(zip(walk, goal)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for before, now in with_previous(batches):
        x, y = now
        x_before = x if before is None else before[0]
        features = np.concatenate([x, x - x_before], axis=1)
        loss, grads = vg(ms.Tensor(features), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
