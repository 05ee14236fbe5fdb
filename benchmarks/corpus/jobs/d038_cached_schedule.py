# truth: exact
# class: closure
# lru_cache and cached_property keep only what depends on the arguments and on constants

import functools
import math
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)


def forward_fn(x, y, w):
    return (w * (net(x) - y) ** 2).mean()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)


@ms.jit
def train_step(x, y, w):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class Recipe:
    def __init__(self, epochs, per_epoch):
        self.total = epochs * per_epoch

    @functools.cached_property
    def sample_weights(self):
        return Tensor(np.linspace(1.5, 0.5, 8, dtype=np.float32).reshape(8, 1))

    @functools.lru_cache(maxsize=None)
    def rate(self, step):
        return 0.5 * 0.03 * (1 + math.cos(math.pi * step / self.total))


recipe = Recipe(3, len(rows))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        ops.assign(optimizer.learning_rate, Tensor(recipe.rate(step), ms.float32))
        train_step(x, y, recipe.sample_weights)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
