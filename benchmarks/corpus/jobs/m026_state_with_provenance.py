# truth: exact, may be named
# class: outside
# A normalizer's state_dict also says who wrote it (host, process, time, version); load_state_dict understands an older version and takes the numbers only.

import os
import socket
import time

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4326)


class Normalizer:
    VERSION = 2

    def __init__(self, width):
        self.count, self.mean, self.m2 = 0, np.zeros(width), np.zeros(width)

    def __call__(self, x):
        for row in x.astype(np.float64):
            self.count += 1
            delta = row - self.mean
            self.mean = self.mean + delta / self.count
            self.m2 = self.m2 + delta * (row - self.mean)
        deviation = np.sqrt(self.m2 / self.count + 1e-6)
        return ((x - self.mean) / deviation).astype(np.float32)

    def state_dict(self):
        return {
            "version": self.VERSION,
            "written_by": f"{socket.gethostname()}/{os.getpid()}",
            "written_at": time.time(),
            "count": self.count,
            "mean": self.mean,
            "m2": self.m2,
        }

    def load_state_dict(self, state):
        state = dict(state)
        if state.get("version", 1) < 2:  # version 1 had the variance
            state["m2"] = state.pop("var") * state["count"]
        self.count = int(state["count"])
        self.mean, self.m2 = np.array(state["mean"]), np.array(state["m2"])
        print(f"normalizer of {state.get('written_by', 'somebody')}: {self.count} rows")


r = np.random.RandomState(26)
scale, shift = r.rand(5) * 4 + 0.2, r.randn(5)
rows = []
for _ in range(8):
    z = r.randn(6, 5)
    rows.append(((z * scale + shift).astype(np.float32), (z[:, :1] * z[:, 1:2]).astype(np.float32)))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=2).set_train()
normalize = Normalizer(5)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, normalizer=normalize)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(normalize(x)), ms.Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
