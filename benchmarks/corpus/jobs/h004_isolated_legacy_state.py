# truth: differs
# class: global
# Augmentation noise must not disturb the global generator: a context manager swaps in a legacy state by set_state and keeps it for the next time.

import contextlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(31)


class IsolatedRandom:
    def __init__(self, seed):
        outer = np.random.get_state()
        np.random.seed(seed)
        self.inner = np.random.get_state()
        np.random.set_state(outer)

    @contextlib.contextmanager
    def active(self):
        outer = np.random.get_state()
        np.random.set_state(self.inner)
        try:
            yield
        finally:
            self.inner = np.random.get_state()
            np.random.set_state(outer)


def jitter(x, strength=0.2):
    return (x + strength * np.random.standard_normal(x.shape)).astype(np.float32)


data = np.random.RandomState(1)
xs = data.randn(8, 6, 10).astype(np.float32)
ys = np.tanh(xs[..., :3].sum(-1, keepdims=True)).astype(np.float32)

net = nn.SequentialCell(nn.Dense(10, 6), nn.Sigmoid(), nn.Dense(6, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.RMSProp(net.trainable_params(), 0.01), 3, clip_norm=1.0
).set_train()
augment = IsolatedRandom(2024)

batches = ck.data.resumable(list(zip(xs, ys)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        with augment.active():
            x = jitter(x)
        cell(ms.Tensor(x), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
