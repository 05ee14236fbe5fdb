# truth: refused
# class: data
# A loader that can be iterated again orders its rows at the start of each epoch by the errors of the network that it was given.

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3157)


class EasyFirst:
    """competence: what the scorer finds easy comes first in an epoch"""

    def __init__(self, x, y, size, scorer):
        self.x, self.y, self.size, self.scorer = x, y, size, scorer

    def __len__(self):
        return len(self.x) // self.size

    def __iter__(self):
        order = np.argsort(self.scorer(self.x, self.y), kind="stable")
        for i in range(len(self)):
            chosen = order[i * self.size : (i + 1) * self.size]
            yield self.x[chosen], self.y[chosen]


def errors_of(model):
    def score(x, y):
        return ((model(Tensor(x)).asnumpy() - y) ** 2).sum(-1)

    return score


r = np.random.RandomState(57)
x = r.randn(40, 4).astype(np.float32)
y = (np.sin(2 * x[:, :1]) + 0.4 * r.randn(40, 1)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.03)
cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), opt).set_train()
batches = ck.data.resumable(EasyFirst(x, y, 5, errors_of(net)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for a, b in batches:
        cell(Tensor(a), Tensor(b))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
