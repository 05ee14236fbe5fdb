# truth: differs
# class: attribute
# A network that solves u' = -2u: each step adds fresh quasi-random collocation points to the boundary data.

import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from scipy.stats import qmc

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(104)

net = nn.SequentialCell(nn.Dense(1, 16), nn.Tanh(), nn.Dense(16, 16), nn.Tanh(), nn.Dense(16, 1))
optimizer = nn.Adam(net.trainable_params(), 3e-3)
sampler = qmc.Halton(d=1, scramble=True, seed=4)
h = 1e-2


def forward(t, t0, u0):
    slope = (net(t + h) - net(t - h)) / (2 * h)
    residual = slope + 2.0 * net(t)
    return (residual**2).mean() + 10.0 * ((net(t0) - u0) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, net.trainable_params())
r = np.random.RandomState(4)
observed = []
for _ in range(9):
    t0 = r.rand(4, 1).astype(np.float32) * 0.2
    observed.append((t0, np.exp(-2 * t0)))

batches = ck.data.resumable(observed, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for t0, u0 in batches:
        t = ms.Tensor(sampler.random(16).astype(np.float32))
        loss, grads = grad_fn(t, ms.Tensor(t0), ms.Tensor(u0))
        optimizer(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
