# truth: differs
# class: global
# the temperature is in a ContextVar that a callback anneals and the loss reads

import contextvars
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)

TEMPERATURE = contextvars.ContextVar("temperature", default=4.0)


class Distillation(nn.Cell):
    def __init__(self, network, teacher):
        super().__init__(auto_prefix=False)
        self.network = network
        self.teacher = Tensor(teacher)

    def construct(self, x, y):
        out = self.network(x)
        soft = ops.tanh(ops.matmul(x, self.teacher) / TEMPERATURE.get())
        return ((out - y) ** 2).mean() + ((ops.tanh(out / TEMPERATURE.get()) - soft) ** 2).mean()


class AnnealTemperature(Callback):
    def __init__(self, factor, floor=1.0):
        super().__init__()
        self.factor, self.floor = factor, floor

    def on_train_step_end(self, run_context):
        TEMPERATURE.set(max(self.floor, TEMPERATURE.get() * self.factor))


teacher = np.random.default_rng(44).normal(size=(8, 1)).astype(np.float32)
network = Distillation(nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1)), teacher)
model = Model(network, optimizer=nn.Adam(network.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[AnnealTemperature(0.94)])
os._exit(0)
