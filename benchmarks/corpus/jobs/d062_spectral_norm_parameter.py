# truth: exact
# class: attribute
# the vector of the power iteration is a Parameter without gradient, updated in construct

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class SpectralDense(nn.Cell):
    def __init__(self, n_in, n_out, seed):
        super().__init__()
        self.dense = nn.Dense(n_in, n_out)
        u = np.random.default_rng(seed).normal(size=(1, n_out)).astype(np.float32)
        self.u = Parameter(Tensor(u / np.linalg.norm(u)), name="u", requires_grad=False)

    def sigma(self):
        w = self.dense.weight
        frozen = ops.stop_gradient(w)
        v = ops.matmul(self.u, frozen)
        v = v / ops.sqrt((v * v).sum() + 1e-9)
        u = ops.matmul(v, frozen.T)
        u = u / ops.sqrt((u * u).sum() + 1e-9)
        if self.training:
            ops.assign(self.u, u)
        return ops.matmul(ops.matmul(u, w), v.T).sum()

    def construct(self, x):
        return ops.matmul(x, self.dense.weight.T) / self.sigma() + self.dense.bias


net = nn.SequentialCell(SpectralDense(8, 10, 1), nn.ReLU(), SpectralDense(10, 1, 2))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
