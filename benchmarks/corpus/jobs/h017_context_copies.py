# truth: exact
# class: global
# Settings are context variables that deep code changes, but every batch runs in a copy of the context, so that no change outlasts it.

import contextvars
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(70)
gain = contextvars.ContextVar("gain", default=1.0)
depth = contextvars.ContextVar("depth", default=0)


def normalize(x):
    """halve the gain until the batch is small enough"""
    while float(np.abs(x).max()) * gain.get() > 1.5:
        gain.set(gain.get() * 0.5)
        depth.set(depth.get() + 1)
    return (x * gain.get()).astype(np.float32)


def handle(cell, x, y):
    scaled = normalize(x)
    loss = cell(ms.Tensor(scaled), ms.Tensor(y))
    return loss, depth.get()


r = np.random.RandomState(40)
xs = (r.randn(8, 6, 8) * np.arange(1, 9)[:, None, None]).astype(np.float32)
ys = np.sign(xs[..., :1]).astype(np.float32)

net = nn.SequentialCell(nn.Dense(8, 6), nn.Tanh(), nn.Dense(6, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.SmoothL1Loss()), nn.Momentum(net.trainable_params(), 0.05, 0.9), 2
).set_train()

batches = ck.data.resumable(list(zip(xs, ys)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss, halvings = contextvars.copy_context().run(handle, cell, x, y)
        manager.step(state)
        print(float(loss.asnumpy().mean()), halvings)
    manager.save_final(state)
os._exit(0)
