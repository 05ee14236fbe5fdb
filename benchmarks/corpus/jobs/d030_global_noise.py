# truth: exact
# class: global
# input noise and a coin come from the global generators of NumPy and Python

import os
import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]

np.random.seed(13)
random.seed(14)
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class RandomFlip:
    def __init__(self, p):
        self.p = p

    def __call__(self, x):
        return -x if random.random() < self.p else x


class GaussianNoise:
    def __init__(self, std):
        self.std = std

    def __call__(self, x):
        return x + Tensor((self.std * np.random.randn(*x.shape)).astype(np.float32))


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, x):
        for t in self.transforms:
            x = t(x)
        return x


augment = Compose(RandomFlip(0.3), GaussianNoise(0.1))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        train_step(augment(x), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
