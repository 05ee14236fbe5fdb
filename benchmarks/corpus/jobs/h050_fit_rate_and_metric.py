# truth: exact, may be named
# class: callback
# Model.fit: LearningRateScheduler multiplies the (stored) rate, History is only printed, and a metric of one's own clears itself.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import History, LearningRateScheduler, Metric

import ckptkit as ck

ms.set_seed(98)


class MedianError(Metric):
    def __init__(self):
        super().__init__()
        self.clear()

    def clear(self):
        self._errors = []

    def update(self, *inputs):
        prediction, target = (np.asarray(v.asnumpy()) for v in inputs)
        self._errors.extend(np.abs(prediction - target).ravel().tolist())

    def eval(self):
        return float(np.median(self._errors))


def slower(rate, step):
    return rate * 0.97


r = np.random.default_rng(80)
x = r.normal(size=(80, 6)).astype(np.float32)
y = (x @ r.normal(size=(6, 1)) + 0.1 * r.normal(size=(80, 1))).astype(np.float32)
train_data = ds.NumpySlicesDataset((x[:64], y[:64]), ["x", "y"], shuffle=True).batch(8)
valid_data = ds.NumpySlicesDataset((x[64:], y[64:]), ["x", "y"], shuffle=False).batch(8)

net = nn.SequentialCell(nn.Dense(6, 6), nn.ReLU(), nn.Dense(6, 1))
optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.05, momentum=0.9)
model = ms.Model(net, nn.MSELoss(), optimizer, metrics={"median": MedianError()})
history = History()

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 3, train_data, valid_data, callbacks=[LearningRateScheduler(slower), history])
print(history.epoch)
os._exit(0)
