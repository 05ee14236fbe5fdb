# truth: differs
# class: attribute
# Callbacks share meters that a factory under lru_cache hands out by name, like logging.getLogger; one writes, the other sets the rate.

import functools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3119)


class Meter:
    __slots__ = ("name", "total", "n")

    def __init__(self, name):
        self.name, self.total, self.n = name, 0.0, 0

    def add(self, value):
        self.total += value
        self.n += 1

    def mean(self, default):
        return self.total / self.n if self.n else default


@functools.lru_cache(maxsize=None)
def meter(name):
    return Meter(name)


class Measure(Callback):
    def on_train_step_end(self, run_context):
        meter("train/loss").add(float(run_context.original_args().net_outputs.asnumpy()))


class RateByMean(Callback):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def on_train_step_end(self, run_context):
        m = meter("train/loss").mean(default=1.0)
        ops.assign(self.rate, ms.Tensor(0.03 * m / (0.5 + m), ms.float32))


r = np.random.RandomState(19)
x = r.randn(32, 4).astype(np.float32)
y = np.floor(x[:, :1] * 2).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[Measure(), RateByMean(opt.learning_rate)],
)
os._exit(0)
