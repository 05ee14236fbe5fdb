# truth: differs
# class: callback
# Model.fit: a metric reports the mean over all evaluations so far, and ReduceLROnPlateau follows it.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import ReduceLROnPlateau
from mindspore.train.metrics import Metric

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(39)


class SmoothError(Metric):
    def __init__(self):
        super().__init__()
        self.history = []
        self.clear()

    def clear(self):
        self.total, self.rows = 0.0, 0

    def update(self, *inputs):
        predicted, truth = inputs[0].asnumpy(), inputs[1].asnumpy()
        self.total += float(((predicted - truth) ** 2).sum())
        self.rows += len(truth)

    def eval(self):
        self.history.append(self.total / self.rows)
        return sum(self.history) / len(self.history)


r = np.random.RandomState(29)
x = r.randn(64, 4).astype(np.float32)
y = (x[:, :1] ** 2).astype(np.float32)
train = ds.NumpySlicesDataset((x[:48], y[:48]), ["x", "y"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[48:], y[48:]), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"error": SmoothError()})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
plateau = ReduceLROnPlateau(monitor="error", factor=0.5, patience=1, mode="min", min_delta=0.02)
ckpt.fit(model, 7, train, valid, callbacks=[plateau])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
