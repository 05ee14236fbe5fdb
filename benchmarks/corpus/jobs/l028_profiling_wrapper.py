# truth: exact
# class: callback
# A wrapper made by a factory times every method of the wrapped callback and counts its calls for a profile; the inner one has no memory, K = 2.

import collections
import os
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4128)
EVENTS = ("on_train_begin", "on_train_epoch_begin", "on_train_step_begin", "on_train_step_end", "on_train_epoch_end")


def profiled(inner):
    """inner, with the time it takes per method"""
    calls, seconds = collections.Counter(), collections.defaultdict(float)

    def timed(name):
        method = getattr(inner, name)

        def call(self, run_context):
            start = time.perf_counter()
            try:
                return method(run_context)
            finally:
                calls[name] += 1
                seconds[name] += time.perf_counter() - start

        return call

    def on_train_end(self, run_context):
        inner.on_train_end(run_context)
        for name, number in calls.most_common():
            print(f"{name:22}{number:5} calls {1e3 * seconds[name]:8.2f} ms")

    members = {name: timed(name) for name in EVENTS} | {"on_train_end": on_train_end}
    return type(f"Profiled{type(inner).__name__}", (Callback,), members)()


class Sawtooth(Callback):
    def __init__(self, optimizer, low, high):
        super().__init__()
        self.optimizer, self.low, self.high = optimizer, low, high

    def on_train_step_end(self, run_context):
        phase = run_context.original_args().cur_step_num % 6 / 6
        rate = self.high + (self.low - self.high) * phase
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(28)
x = r.randn(48, 8).astype(np.float32)
y = np.tanh(x[:, :2] - x[:, 2:4]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(8, 4), nn.Tanh(), nn.Dense(4, 2))
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), opt, accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, train, callbacks=[profiled(Sawtooth(opt, 0.005, 0.04))])
os._exit(0)
