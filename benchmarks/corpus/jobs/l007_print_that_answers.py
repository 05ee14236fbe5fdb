# truth: differs
# class: attribute
# print is replaced by a console that marks improvements on the best line so far and returns by how much; the callback uses the return value.

import math
import os
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4107)


class Console:
    """Drop-in for print: an arrow before lines that beat all lines before."""

    def __init__(self, stream=sys.stdout):
        self.stream = stream
        self.best = None

    def __call__(self, *words, score=None):
        gain = 0.0
        if score is not None:
            gain = 0.0 if self.best is None else self.best - score
            self.best = score if self.best is None else min(self.best, score)
        self.stream.write(("-> " if gain > 0 else "   ") + " ".join(map(str, words)) + "\n")
        return gain


print = Console()


class Report(Callback):
    def __init__(self, optimizer, base=0.02):
        super().__init__()
        self.optimizer, self.base = optimizer, base

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        gain = print("epoch", cb.cur_epoch_num, "step", cb.cur_step_num, f"loss {loss:.4f}", score=loss)
        rate = self.base * (1 + 0.5 * math.tanh(gain))
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(7)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.02, 0.8)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Report(opt)])
os._exit(0)
