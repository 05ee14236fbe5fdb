# truth: differs
# class: iterator
# A decorator for log methods, @every(4), lets each fourth call through; somebody put it on a method that renormalizes weights.

import functools
import itertools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4119)


def every(n):
    def decorate(function):
        ticks = itertools.cycle([False] * (n - 1) + [True])

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs) if next(ticks) else None

        return wrapper

    return decorate


class Maintenance(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        self.log(cb)
        self.renormalize(cb)

    @every(3)
    def log(self, cb):
        print(cb.cur_step_num, cb.net_outputs)

    @every(4)
    def renormalize(self, cb):
        for p in cb.train_network.trainable_params():
            if p.ndim == 2:
                norms = ops.sqrt((p * p).sum(1, keepdims=True))
                ops.assign(p, p / (0.5 + 0.5 * norms))


r = np.random.RandomState(19)
x = r.randn(48, 6).astype(np.float32)
y = np.sign(x[:, :1] * x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Maintenance()])
os._exit(0)
