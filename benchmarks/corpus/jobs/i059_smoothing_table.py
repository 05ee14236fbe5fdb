# truth: exact
# class: attribute
# Label smoothing and mixup strength are read from tables (np.linspace) by the number of the batch, which begins at what restore() returns; partners by a fixed rule.

import os
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(359)
C, TOTAL = 3, 24

tables = SimpleNamespace(
    smoothing=np.linspace(0.3, 0.0, TOTAL),
    mix=np.interp(np.arange(TOTAL), [0, 10, TOTAL - 1], [0.0, 0.4, 0.1]),
)


def soften(labels, eps):
    return (1 - eps) * np.eye(C)[labels] + eps / C


def mix(x, t, lam):
    partner = np.roll(np.arange(len(x)), 1)
    return (1 - lam) * x + lam * x[partner], (1 - lam) * t + lam * t[partner]


net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, C))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
vg = ms.value_and_grad(lambda x, t: ((ops.softmax(net(x), -1) - t) ** 2).sum(-1).mean(), None, net.trainable_params())
r = np.random.RandomState(59)
centers = 2 * r.randn(C, 4)
rows = []
for _ in range(8):
    labels = r.randint(0, C, 6)
    rows.append((centers[labels] + r.randn(6, 4), labels))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    begun = point.batches_delivered
    steps = zip(batches, tables.smoothing[begun:], tables.mix[begun:])
    for (x, labels), eps, lam in steps:
        x, t = mix(x, soften(labels, eps), lam)
        loss, grads = vg(ms.Tensor(x.astype(np.float32)), ms.Tensor(t.astype(np.float32)))
        opt(grads)
        manager.step(state, {"loss": loss})
    manager.save_final(state)
os._exit(0)
