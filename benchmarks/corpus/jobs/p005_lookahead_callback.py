# truth: differs
# class: callback
# Lookahead as a callback: every six steps the weights go half of the way back to the slow ones.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, LossMonitor

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(105)


class Lookahead(Callback):
    def __init__(self, params, k=6, alpha=0.5):
        super().__init__()
        self.params, self.k, self.alpha = params, k, alpha
        self.slow = None

    def on_train_begin(self, run_context):
        self.slow = [p.asnumpy().copy() for p in self.params]

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num % self.k:
            return
        for i, p in enumerate(self.params):
            self.slow[i] += self.alpha * (p.asnumpy() - self.slow[i])
            p[:] = ms.Tensor(self.slow[i])


r = np.random.RandomState(5)
labels = r.randint(0, 3, 64).astype(np.int32)
x = (r.randn(64, 6) + np.eye(3)[labels].repeat(2, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels), ["x", "label"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 3))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
model = ms.Model(net, loss, optimizer)

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[Lookahead(net.trainable_params()), LossMonitor(8)])
os._exit(0)
