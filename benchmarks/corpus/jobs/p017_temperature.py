# truth: differs
# class: global
# Distillation from a fixed teacher; the temperature cools from step to step.

import contextvars
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(117)
temperature = contextvars.ContextVar("temperature", default=6.0)


class DistillLoss(nn.Cell):
    def __init__(self, student):
        super().__init__()
        self.student = student
        self.ce = nn.SoftmaxCrossEntropyWithLogits(sparse=False, reduction="mean")

    def construct(self, x, teacher_logits):
        t = temperature.get()
        return self.ce(self.student(x) / t, ops.softmax(teacher_logits / t, -1)) * t


class Cooling(Callback):
    def __init__(self, rate=0.94, floor=1.0):
        super().__init__()
        self.rate, self.floor = rate, floor

    def on_train_step_end(self, run_context):
        temperature.set(max(self.floor, temperature.get() * self.rate))


r = np.random.RandomState(17)
x = r.randn(60, 6).astype(np.float32)
teacher_logits = (np.tanh(x @ r.randn(6, 9)) @ r.randn(9, 4) * 2).astype(np.float32)
train = ds.NumpySlicesDataset((x, teacher_logits), ["x", "teacher"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 4))
step = nn.TrainOneStepCell(DistillLoss(net), nn.Momentum(net.trainable_params(), 0.05, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 4, train, callbacks=[Cooling()])
os._exit(0)
