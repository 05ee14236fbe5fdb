# truth: exact
# class: random
# the running mean and variance of the inputs are registered buffers of the layer, in PYNATIVE

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class RunningNorm(nn.Cell):
    def __init__(self, dim, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", Tensor(np.zeros(dim, np.float32)))
        self.register_buffer("var", Tensor(np.ones(dim, np.float32)))

    def construct(self, x):
        if self.training:
            m = self.momentum
            mean = x.mean(0)
            var = ((x - mean) ** 2).mean(0)
            self.mean.assign_value((1 - m) * self.mean + m * mean)
            self.var.assign_value((1 - m) * self.var + m * var)
        return (x - self.mean) / (self.var + 1e-5) ** 0.5


class Regressor(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.body, self.head = RunningNorm(8), nn.Dense(8, 10), nn.Dense(10, 1)

    def construct(self, x):
        return self.head(ops.relu(self.body(self.norm(x))))


net = Regressor()
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
