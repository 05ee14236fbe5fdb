# truth: exact
# class: random
# the random.Random that draws the tasks is given by name; the inner weights are local to one step

import os
import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.SGD(net.trainable_params(), 0.02)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class TaskSampler:
    def __init__(self, rng):
        self.rng = rng

    def sample(self):
        return {"slope": self.rng.uniform(0.5, 1.5), "shift": self.rng.gauss(0, 0.3), "flip": self.rng.choice((1, -1))}


def inner_loop(params, x, y, steps=2):
    start = [p.value().copy() for p in params]
    for _ in range(steps):
        train_step(x, y)
    return start


def reptile_update(params, start, epsilon):
    for p, s in zip(params, start):
        ops.assign(p, s + epsilon * (p.value() - s))


def main():
    rng = random.Random(7)
    tasks = TaskSampler(rng)
    params = net.trainable_params()
    batches = ck.data.resumable(rows, epochs=3)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches, tasks=rng)
        manager.restore(state)
        for x, y in batches:
            task = tasks.sample()
            start = inner_loop(params, x, y * task["flip"] * task["slope"] + task["shift"])
            reptile_update(params, start, 0.4)
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
