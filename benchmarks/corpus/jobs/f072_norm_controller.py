# truth: exact
# class: closure
# A regularizer's strength is controlled, but by a function of the present weights only (power iteration from a fixed vector).

import functools
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(97)


@functools.lru_cache(maxsize=None)
def start_vector(n):
    v = np.cos(np.arange(n) + 1.0)
    return v / np.linalg.norm(v)


def spectral_norm(w, rounds=6):
    w = w.asnumpy().astype(np.float64)
    v = start_vector(w.shape[1])
    for _ in range(rounds):
        u = w @ v
        v = w.T @ (u / np.linalg.norm(u))
        sigma = np.linalg.norm(v)
        v = v / sigma
    return float(sigma)


class Strength:
    """strength() looks at the network each time; there is nothing to remember"""

    def __init__(self, net, target=1.0):
        self.matrices = [p for p in net.trainable_params() if p.ndim == 2]
        self.target = target

    def __call__(self):
        excess = max(spectral_norm(w) for w in self.matrices) - self.target
        return 0.01 * float(np.clip(excess, 0.0, 5.0))


class Decayed(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.mse = nn.MSELoss()

    def construct(self, x, y, strength):
        penalty = 0.0
        for p in self.net.trainable_params():
            penalty = penalty + (p * p).sum()
        return self.mse(self.net(x), y) + strength * penalty


net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 2))
strength = Strength(net)
loss = Decayed(net)
cell = ck.AccumulationTrainCell(loss, nn.Momentum(net.trainable_params(), 0.1, 0.9), 1).set_train()
rows = [(x, 2 * x[:, :2] - x[:, 2:4]) for x in np.random.RandomState(97).randn(8, 5, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(x), ms.Tensor(y), ms.Tensor(strength(), ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
