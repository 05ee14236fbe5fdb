# truth: differs
# class: callback
# One method formats the status line from this step's numbers, another parses that line and sets the rate; the line is new before each reading.

import os
import re

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4104)


class StatusLine(Callback):
    """What is on the screen is what the rate is computed from, to the digit."""

    def __init__(self, optimizer, base):
        super().__init__()
        self.optimizer, self.base = optimizer, base
        self.line = ""

    def compose(self, cb):
        done = cb.cur_step_num / (cb.batch_num * cb.epoch_num)
        self.line = f"[{done:7.2%}] loss={float(cb.net_outputs.asnumpy()):.4f}"

    def apply(self):
        percent, loss = re.fullmatch(r"\[ *([\d.]+)%\] loss=([\d.]+)", self.line).groups()
        rate = self.base * (1 - 0.9 * float(percent) / 100) / (1 + float(loss))
        ops.assign(self.optimizer.learning_rate, ms.Tensor(rate, ms.float32))

    def on_train_step_end(self, run_context):
        self.compose(run_context.original_args())
        self.apply()
        print(self.line)


r = np.random.RandomState(4)
x = r.randn(48, 4).astype(np.float32)
y = np.abs(x).sum(1, keepdims=True).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.SGD(net.trainable_params(), 0.01)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[StatusLine(opt, 0.05)])
os._exit(0)
