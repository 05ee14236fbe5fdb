# truth: differs
# class: attribute
# Spectral normalization: u is a Parameter, but each power step begins with v, which is a tensor in the layer's scratch namespace.

import os
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3131)


def unit(t):
    return t / (ops.sqrt((t * t).sum()) + 1e-8)


class SpectralDense(nn.Cell):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = Parameter(Tensor(np.random.randn(n_out, n_in).astype(np.float32)), name="weight")
        self.u = Parameter(unit(ops.ones((n_out,), ms.float32)), name="u", requires_grad=False)
        self.scratch = SimpleNamespace(v=unit(ops.ones((n_in,), ms.float32)))

    def construct(self, x):
        w = ops.stop_gradient(self.weight)
        u = unit(ops.matmul(w, self.scratch.v))
        v = unit(ops.matmul(u, w))
        ops.assign(self.u, u)
        self.scratch.v = v
        sigma = (u * ops.matmul(self.weight, v)).sum()
        return ops.matmul(x, (self.weight / sigma).T)


net = nn.SequentialCell(SpectralDense(5, 7), nn.Tanh(), SpectralDense(7, 6), nn.Tanh(), nn.Dense(6, 1))
net.update_parameters_name("critic.")
loss = nn.WithLossCell(net, nn.MSELoss())
cell = nn.TrainOneStepCell(loss, nn.Adam(net.trainable_params(), 0.01)).set_train()
r = np.random.RandomState(31)
rows = [(Tensor(a), Tensor(a.max(1, keepdims=True))) for a in r.randn(8, 6, 5).astype(np.float32)]

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
