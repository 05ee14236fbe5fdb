# truth: exact
# class: attribute
# A LearningRateSchedule of one's own multiplies its rate every sixth update; the present rate is a Parameter of the schedule.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3128)


class Staircase(LearningRateSchedule):
    def __init__(self, start, factor, period):
        super().__init__()
        self.rate = Parameter(Tensor(start, ms.float32), name="staircase_rate", requires_grad=False)
        self.factor = factor
        self.period = period

    def construct(self, global_step):
        drop = ops.cast(ops.equal((global_step + 1) % self.period, 0), ms.float32)
        now = self.rate * (1.0 - drop.reshape(()) * (1.0 - self.factor))
        ops.assign(self.rate, now)
        return now


net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Momentum(net.trainable_params(), learning_rate=Staircase(0.1, 0.6, 6), momentum=0.9)
cell = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), opt).set_train()
r = np.random.RandomState(28)
rows = [(Tensor(a), Tensor(a[:, :1] - a[:, 1:2])) for a in r.randn(8, 4, 5).astype(np.float32)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
