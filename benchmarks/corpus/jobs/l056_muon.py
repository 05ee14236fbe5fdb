# truth: exact
# class: closure
# Muon: momentum in a ParameterTuple, matrices orthogonalized by Newton-Schulz in each step; a table of polynomial coefficients is cached by shape.

import functools
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4156)


@functools.lru_cache(maxsize=None)
def coefficients(rows, columns):
    steps = 3 if min(rows, columns) < 4 else 5
    return ((3.4445, -4.7750, 2.0315),) * steps


def orthogonal(g):
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g
    x = x / (ops.sqrt((x * x).sum()) + 1e-7)
    for a, b, c in coefficients(*g.shape):
        s = ops.matmul(x, x.T)
        x = a * x + ops.matmul(b * s + c * ops.matmul(s, s), x)
    return x.T if tall else x


class Muon(nn.Optimizer):
    def __init__(self, params, learning_rate, momentum=0.9):
        super().__init__(learning_rate, params)
        self.momentum = momentum
        self.moments = self.parameters.clone(prefix="muon", init="zeros")

    def construct(self, gradients):
        ops.assign_add(self.global_step, ms.Tensor([1], ms.int32))
        rate = self.get_lr()
        for p, m, g in zip(self.parameters, self.moments, gradients):
            ops.assign(m, self.momentum * m + g)
            update = orthogonal(g + self.momentum * m) if p.ndim == 2 else m
            ops.assign(p, p - rate * update)
        return True


r = np.random.RandomState(56)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, Muon(net.trainable_params(), 0.02), accumulation_steps=2).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
