# truth: differs
# class: variable
# Forecasting with adaptive conformal inference: the level of the pinball loss follows the observed coverage in a namedtuple.

import os
from collections import namedtuple
from functools import partial

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

Level = namedtuple("Level", "alpha gamma target")


def aci_update(level, y, upper):
    """alpha <- alpha + gamma * (target - miscoverage)"""
    miss = float((y > upper).mean())
    alpha = level.alpha + level.gamma * (level.target - miss)
    return level._replace(alpha=float(np.clip(alpha, 0.02, 0.6)))


def windows(series, width, batch):
    xs = np.stack([series[i : i + width] for i in range(len(series) - width)])
    ys = series[width:, None]
    return [
        (xs[i : i + batch].astype(np.float32), ys[i : i + batch].astype(np.float32))
        for i in range(0, len(xs) - batch + 1, batch)
    ]


def pinball(net, x, y, q):
    pred = net(x)
    diff = y - pred
    return ops.maximum(q * diff, (q - 1) * diff).mean(), pred


ms.set_seed(40)
t = np.arange(72)
noise = np.random.RandomState(1).randn(72)
series = np.sin(t / 3) + 0.3 * noise * (1 + t / 40)

net = nn.SequentialCell(nn.Dense(8, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Adam(net.trainable_params(), learning_rate=0.02)
grad = ms.value_and_grad(partial(pinball, net), None, net.trainable_params(), has_aux=True)

level = Level(alpha=0.2, gamma=0.15, target=0.2)
batches = ck.data.resumable(windows(series, 8, 8), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        q = ms.Tensor(1.0 - level.alpha, ms.float32)
        (loss, pred), grads = grad(ms.Tensor(x), ms.Tensor(y), q)
        opt(grads)
        level = aci_update(level, y, pred.asnumpy())
        manager.step(state)
    manager.save_final(state)
os._exit(0)
