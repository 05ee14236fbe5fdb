# truth: differs
# class: variable
# Two callbacks talk through a SimpleQueue: one puts losses in, the other takes the loss of three steps ago and sets the rate by it.

import os
import queue

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3101)


class LossProducer(Callback):
    def __init__(self, line):
        super().__init__()
        self.line = line

    def on_train_step_end(self, run_context):
        self.line.put(float(run_context.original_args().net_outputs.asnumpy()))


class DelayedRate(Callback):
    LAG = 3

    def __init__(self, line, optimizer, base):
        super().__init__()
        self.line, self.optimizer, self.base = line, optimizer, base

    def on_train_step_end(self, run_context):
        if self.line.qsize() > self.LAG:
            old = self.line.get_nowait()
            ops.assign(self.optimizer.learning_rate, ms.Tensor(self.base / (1.0 + old), ms.float32))


r = np.random.RandomState(1)
x = r.randn(32, 6).astype(np.float32)
y = np.sin(x[:, :1] * 2).astype(np.float32)
dataset = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
line = queue.SimpleQueue()
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, dataset, callbacks=[LossProducer(line), DelayedRate(line, opt, 0.08)])
os._exit(0)
