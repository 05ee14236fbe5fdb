# truth: differs
# class: random

import os
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(40)


class Stats(NamedTuple):
    n: int
    mean: float
    m2: float

    def add(self, values):
        n, mean, m2 = self
        for v in values:
            n += 1
            delta = v - mean
            mean += delta / n
            m2 += delta * (v - mean)
        return Stats(n, mean, m2)

    @property
    def std(self):
        return (self.m2 / max(1, self.n - 1)) ** 0.5 + 1e-6


class Seq2Seq(nn.Cell):
    def __init__(self, hidden=8):
        super().__init__()
        self.encoder, self.decoder, self.out = nn.RNNCell(1, hidden), nn.RNNCell(1, hidden), nn.Dense(hidden, 1)
        self.hidden = hidden

    def construct(self, past, future, forced):
        h = ops.zeros((past.shape[0], self.hidden))
        for t in range(past.shape[1]):
            h = self.encoder(past[:, t], h)
        value, outputs = past[:, -1], []
        for t in range(future.shape[1]):
            h = self.decoder(value, h)
            outputs.append(self.out(h))
            value = future[:, t] if forced[t] else outputs[-1]
        return ops.stack(outputs, 1)


class Pipeline:
    def __init__(self, model, lr=0.01):
        self.model = model
        self.optimizer = nn.Adam(model.trainable_params(), lr)
        self.grad_fn = ms.value_and_grad(self.forward, None, self.optimizer.parameters)
        self.stats = Stats(0, 0.0, 0.0)

    def forward(self, past, future, forced):
        return ((self.model(past, future, forced) - future) ** 2).mean()

    def normalize(self, series):
        self.stats = self.stats.add(series.ravel().tolist())
        return ((series - self.stats.mean) / self.stats.std).astype(np.float32)

    def __call__(self, series, ratio):
        series = self.normalize(series)
        forced = np.random.random(3) < ratio
        past, future = Tensor(series[:, :5, None]), Tensor(series[:, 5:, None])
        loss, grads = self.grad_fn(past, future, forced.tolist())
        self.optimizer(grads)
        return float(loss)


rng = np.random.default_rng(2)
data = [5 + 0.1 * i + np.cumsum(rng.normal(size=(6, 8)), 1) for i in range(36)]
pipeline = Pipeline(Seq2Seq())
run = ck.loop(
    ROOT,
    data,
    epochs=1,
    train=[pipeline.model, pipeline.optimizer],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for series in run:
    number = run.step
    loss = pipeline(series, ratio=max(0.0, 1 - number / 30))
    if number % 12 == 0:
        print(number, loss)
os._exit(0)
