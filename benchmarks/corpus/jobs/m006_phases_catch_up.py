# truth: exact, may be named
# class: callback
# The phases of the training wait in a deque; after each step a while loop drops those that are over, so that a start catches up at once.

import os
from collections import deque
from typing import NamedTuple

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4306)


class Phase(NamedTuple):
    until: int
    name: str
    rate: float
    shrink: float


PHASES = [
    Phase(4, "warm", 0.01, 0.0),
    Phase(14, "fast", 0.05, 0.001),
    Phase(19, "slow", 0.02, 0.003),
    Phase(99, "end", 0.005, 0),
]


class Conductor(Callback):
    def __init__(self, phases):
        super().__init__()
        self.ahead = deque(phases)
        self.passed = []

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        while self.ahead[0].until <= cb.cur_step_num:
            self.passed.append(self.ahead.popleft().name)
        phase = self.ahead[0]
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(phase.rate, ms.float32))
        for p in cb.optimizer.parameters:
            ops.assign(p, p * (1 - phase.shrink))

    def on_train_end(self, run_context):
        print("passed:", ", ".join(self.passed), "- now:", self.ahead[0].name)


r = np.random.RandomState(6)
x = r.randn(48, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Conductor(PHASES)])
os._exit(0)
