# truth: exact
# class: random
# Quasi-random collocation points; a start forwards the sequence by what was trained already.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
from scipy.stats import qmc

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(139)
POINTS = 12

net = nn.SequentialCell(nn.Dense(2, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.Adam(net.trainable_params(), 5e-3)
h = 1e-2
dx, dt = ms.Tensor([[h, 0.0]], ms.float32), ms.Tensor([[0.0, h]], ms.float32)


def forward(inside, border, value):
    advection = (net(inside + dt) - net(inside - dt) + net(inside + dx) - net(inside - dx)) / (2 * h)
    return (advection**2).mean() + ((net(border) - value) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, net.trainable_params())
r = np.random.RandomState(41)
borders = []
for _ in range(8):
    border = np.stack([r.rand(6) * 2 - 1, np.zeros(6)], 1).astype(np.float32)
    borders.append((border, np.sin(np.pi * border[:, :1])))

batches = ck.data.resumable(borders, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    sampler = qmc.Halton(d=2, scramble=True, seed=41)
    sampler.fast_forward(point.batches_delivered * POINTS)
    for border, value in batches:
        inside = ms.Tensor(sampler.random(POINTS).astype(np.float32))
        loss, grads = grad_fn(inside, ms.Tensor(border), ms.Tensor(value))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
