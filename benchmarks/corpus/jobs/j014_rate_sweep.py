# truth: differs
# class: attribute
# The first epoch sweeps the learning rate; the rate of the lowest loss, found with a running min of pairs, is the peak of the cosine after it.

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3114)


class SweepThenCosine(Callback):
    def __init__(self, opt, low, high, sweep, total):
        super().__init__()
        self.opt = opt
        self.span = (low, high)
        self.sweep, self.total = sweep, total
        self.choice = (float("inf"), low)

    def on_train_step_begin(self, run_context):
        n = run_context.original_args().cur_step_num
        low, high = self.span
        if n <= self.sweep:
            rate = low * (high / low) ** (n / self.sweep)
        else:
            rate = self.choice[1] * 0.5 * (1 + math.cos(math.pi * (n - self.sweep) / (self.total - self.sweep + 1)))
        ops.assign(self.opt.learning_rate, ms.Tensor(rate, ms.float32))

    def on_train_step_end(self, run_context):
        p = run_context.original_args()
        if p.cur_step_num <= self.sweep:
            found = float(p.net_outputs.asnumpy()), float(self.opt.learning_rate.asnumpy())
            self.choice = min(self.choice, found)


r = np.random.RandomState(14)
x = r.randn(64, 5).astype(np.float32)
y = np.arctan(x[:, :2] * 3).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 2))
opt = nn.Momentum(net.trainable_params(), 0.001, 0.9)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(8),
    callbacks=[SweepThenCosine(opt, 0.002, 0.2, 8, 24)],
)
os._exit(0)
