# truth: exact
# class: callback
# step times in a deque and a counter serve a printed forecast only

import os
import time
from collections import deque

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)


def create_dataset(seed, batch_size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 8)).astype(np.float32)
    y = np.sin(x[:, :2].sum(axis=1, keepdims=True)).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(batch_size)


ds.config.set_seed(4)
data = create_dataset(9)


class EtaMonitor(Callback):
    def __init__(self, total, window=10):
        super().__init__()
        self.total, self.done = total, 0
        self.durations = deque(maxlen=window)
        self._began = 0.0

    def step_begin(self, run_context):
        self._began = time.perf_counter()

    def step_end(self, run_context):
        self.durations.append(time.perf_counter() - self._began)
        self.done += 1
        mean = sum(self.durations) / len(self.durations)
        left = mean * (self.total - self.done)
        if self.done % 8 == 0:
            print(f"step {self.done}/{self.total} {1e3 * mean:.1f} ms/step, {left:.1f} s left")

    def epoch_end(self, run_context):
        if self.durations and max(self.durations) > 20 * min(self.durations):
            print("a step was much slower than the others")


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.02, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[EtaMonitor(24)])
os._exit(0)
