# truth: exact
# class: attribute
# Each batch gets an object of an abstract base class of its own.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
import abc

import ckptkit as ck

ms.set_seed(309)


class View(abc.ABC):
    def __init__(self, x):
        self.x = x

    @abc.abstractmethod
    def get(self):
        """the array"""


class Halved(View):
    def get(self):
        self.x = self.x / 2
        return self.x


net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(309)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        scaled = Halved(x)
        loss, grads = vg(ms.Tensor(scaled.get()), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
