# truth: differs
# class: attribute
# the position t and the period of the restarts are attributes that two base classes of the callback keep

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class PerStepSchedule(Callback):
    def __init__(self, base):
        super().__init__()
        self.base, self.t = base, 0

    def rate(self):
        return self.base

    def on_train_step_begin(self, run_context):
        optimizer = run_context.original_args().optimizer
        ops.assign(optimizer.learning_rate, Tensor(self.rate(), ms.float32))

    def on_train_step_end(self, run_context):
        self.t += 1


class Cosine(PerStepSchedule):
    def __init__(self, base, period):
        super().__init__(base)
        self.period = period

    def rate(self):
        return super().rate() * 0.5 * (1.02 + math.cos(math.pi * min(self.t / self.period, 1.0)))


class WarmRestarts(Cosine):
    def __init__(self, base, period, growth, damping=0.8):
        super().__init__(base, period)
        self.growth, self.damping = growth, damping

    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        if self.t >= self.period:
            self.t, self.period, self.base = 0, self.period * self.growth, self.base * self.damping


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[WarmRestarts(0.03, 3, 2)])
os._exit(0)
