# truth: differs
# class: attribute
# MindSpore's LearningRateScheduler with an object whose __call__ decays on its own count, not on the step it gets.

import hashlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LearningRateScheduler

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(38)


class WarmRestart:
    def __init__(self, top=0.1, cycle=10):
        self.top, self.cycle, self.calls = top, cycle, 0

    def __call__(self, lr, step):
        self.calls += 1
        if self.calls % self.cycle == 0:
            self.top *= 0.7
        return self.top * (1 - (self.calls % self.cycle) / self.cycle) + 1e-3


r = np.random.RandomState(28)
x = r.randn(56, 6).astype(np.float32)
y = np.sin(x[:, :1] + x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[LearningRateScheduler(WarmRestart())])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
