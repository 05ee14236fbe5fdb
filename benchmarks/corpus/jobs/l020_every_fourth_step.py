# truth: exact
# class: callback
# The decorator @every(4) asks the RunContext for the step; beside that it counts calls and times them for a profile that is printed.

import functools
import os
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4120)


def every(n):
    def decorate(method):
        @functools.wraps(method)
        def wrapper(self, run_context):
            wrapper.calls += 1
            if run_context.original_args().cur_step_num % n:
                return
            start = time.perf_counter()
            method(self, run_context)
            wrapper.seconds.append(time.perf_counter() - start)

        wrapper.calls, wrapper.seconds = 0, []
        return wrapper

    return decorate


class Maintenance(Callback):
    @every(4)
    def on_train_step_end(self, run_context):
        for p in run_context.original_args().train_network.trainable_params():
            if p.ndim == 2:
                norms = ops.sqrt((p * p).sum(1, keepdims=True))
                ops.assign(p, p / (0.5 + 0.5 * norms))

    def on_train_end(self, run_context):
        wrapper = type(self).on_train_step_end
        print(f"{len(wrapper.seconds)} of {wrapper.calls} calls, {sum(wrapper.seconds) * 1e3:.1f} ms")


r = np.random.RandomState(20)
x = r.randn(48, 6).astype(np.float32)
y = np.sign(x[:, :1] * x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Maintenance()])
os._exit(0)
