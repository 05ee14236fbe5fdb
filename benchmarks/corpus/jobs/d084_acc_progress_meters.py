# truth: exact
# class: attribute
# progress bar, throughput and meters are printed only

import os
import time

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


class ProgressBar:
    def __init__(self, total, width=24):
        self.total, self.width, self.n = total, width, 0
        self.began = time.monotonic()
        self.postfix = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        print(f"{self.n / (time.monotonic() - self.began):.1f} it/s")

    def update(self, **postfix):
        self.n += 1
        self.postfix.update(postfix)
        if self.n % 6 == 0:
            full = self.width * self.n // self.total
            values = " ".join(f"{k}={v:.4f}" for k, v in self.postfix.items())
            print(f"|{'#' * full:<{self.width}}| {self.n}/{self.total} {values}")


class Smoothed:
    def __init__(self, beta=0.9):
        self.beta, self.value, self.steps = beta, 0.0, 0

    def __call__(self, new):
        self.steps += 1
        self.value = self.beta * self.value + (1 - self.beta) * new
        return self.value / (1 - self.beta**self.steps)


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
network = nn.WithLossCell(net, loss_fn)
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.01), 3, clip_norm=1.0).set_train()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager, ProgressBar(24) as bar:
    state, smooth = ck.StateManager(cell, batches), Smoothed()
    manager.restore(state)
    for x, y in batches:
        loss = float(cell(x, y).asnumpy())
        bar.update(loss=smooth(loss), epoch=batches.epoch)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
