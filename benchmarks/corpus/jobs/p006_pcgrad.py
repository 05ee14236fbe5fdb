# truth: exact
# class: random
# PCGrad for three tasks: conflicting gradients are projected, the tasks in random order.

import os
import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(106)
random.seed(106)


class Shared(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(8, 16), nn.Tanh())
        self.heads = nn.CellList([nn.Dense(16, 1) for _ in range(3)])

    def construct(self, x):
        h = self.body(x)
        return [head(h) for head in self.heads]


def pcgrad(per_task):
    flat = [np.concatenate([g.asnumpy().ravel() for g in grads]) for grads in per_task]
    total = np.zeros_like(flat[0])
    for i, g in enumerate(flat):
        g, others = g.copy(), [j for j in range(len(flat)) if j != i]
        random.shuffle(others)
        for j in others:
            dot = float(g @ flat[j])
            if dot < 0:
                g -= dot / (float(flat[j] @ flat[j]) + 1e-12) * flat[j]
        total += g
    out, at = [], 0
    for g in per_task[0]:
        out.append(ms.Tensor(total[at : at + g.size].reshape(g.shape)))
        at += g.size
    return tuple(out)


r = np.random.RandomState(6)
x = r.randn(50, 8).astype(np.float32)
y = np.stack([x[:, 0] * x[:, 1], -x[:, 0] * x[:, 1] + x[:, 2], np.sin(x[:, 3])], 1).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(5)
net = Shared()
optimizer = nn.Adam(net.trainable_params(), 5e-3)
tasks = [
    ms.value_and_grad(lambda x, y, k=k: ((net(x)[k] - y[:, k : k + 1]) ** 2).mean(), None, optimizer.parameters)
    for k in range(3)
]

batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for xb, yb in batches:
        optimizer(pcgrad([task(xb, yb)[1] for task in tasks]))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
