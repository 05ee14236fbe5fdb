# truth: differs
# class: attribute
# Events with once(): the first batch calibrates the output bias and the loss scale, then its listener is removed - in each start again.

import os
from collections import defaultdict

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(75)


class Emitter:
    def __init__(self):
        self.listeners = defaultdict(list)

    def on(self, event, fn):
        self.listeners[event].append(fn)
        return fn

    def once(self, event, fn):
        def wrapper(*args):
            self.listeners[event].remove(wrapper)
            fn(*args)

        self.on(event, wrapper)

    def emit(self, event, *args):
        for fn in list(self.listeners[event]):
            fn(*args)


class Normalizer:
    shift, scale = 0.0, 1.0

    def calibrate(self, y):
        self.shift, self.scale = float(y.mean()), float(y.std()) + 1e-6

    def __call__(self, y):
        return ((y - self.shift) / self.scale).astype(np.float32)


r = np.random.RandomState(17)
X = r.randn(64, 8).astype(np.float32)
Y = (10 + 4 * X[:, :1] + r.randn(64, 1)).astype(np.float32)
rows = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 64, 8)]
net = nn.SequentialCell(nn.Dense(8, 6), nn.ReLU(), nn.Dense(6, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.02), 2
).set_train()

events, normalize = Emitter(), Normalizer()
events.once("batch", normalize.calibrate)
events.on("loss", lambda loss: print("loss", loss))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        events.emit("batch", y)
        loss = cell(ms.Tensor(x), ms.Tensor(normalize(y)))
        events.emit("loss", float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
