# truth: differs
# class: attribute
# Anderson acceleration: the last three iterates and residuals of the weights are in deques, and each step mixes them by a small linear system.

import collections
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4131)


class Anderson:
    def __init__(self, memory=3, ridge=1e-2, damping=0.5):
        self.targets = collections.deque(maxlen=memory)
        self.residuals = collections.deque(maxlen=memory)
        self.ridge, self.damping = ridge, damping

    def mix(self, x, gx):
        self.targets.append(gx)
        self.residuals.append(gx - x)
        f = np.stack(self.residuals)
        gram = f @ f.T
        gram += (self.ridge * np.trace(gram) + 1e-12) * np.eye(len(f))
        share = np.linalg.solve(gram, np.ones(len(f)))
        share /= share.sum()
        return (1 - self.damping) * gx + self.damping * (share @ np.stack(self.targets))


def flat(params):
    return np.concatenate([p.asnumpy().ravel() for p in params]).astype(np.float64)


def unflatten(vector, params):
    at = 0
    for p in params:
        ops.assign(p, ms.Tensor(vector[at : at + p.size].reshape(p.shape).astype(np.float32)))
        at += p.size


r = np.random.RandomState(31)
rows = []
for _ in range(8):
    x = r.randn(8, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1))
mse = nn.MSELoss()
params = net.trainable_params()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, params)
anderson = Anderson()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        here = flat(params)
        manager.fence()
        unflatten(anderson.mix(here, here - 0.05 * flat(grads)), params)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
