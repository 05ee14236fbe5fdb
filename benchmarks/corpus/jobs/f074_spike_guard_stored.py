# truth: exact
# class: attribute
# Batches with a spike of the loss are damped; the history and the number of alarms are attributes given by name.

import os
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(51)


@dataclass
class SpikeGuard:
    size: int = 8
    tolerance: float = 1.5
    history: list = field(default_factory=list)
    alarms: int = 0

    def weight(self, loss):
        usual = sorted(self.history)[len(self.history) // 2] if self.history else loss
        spike = loss > self.tolerance * usual
        self.alarms += int(spike)
        self.history = [*self.history, loss][-self.size :]
        return (0.2 if spike else 1.0) / (1.0 + 0.1 * self.alarms)


class Scaled(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))

    def plain(self, x, y):
        return ((self.net(x) - y) ** 2).mean()

    def construct(self, x, y, weight):
        return weight * self.plain(x, y)


loss = Scaled()
cell = ck.AccumulationTrainCell(loss, nn.SGD(loss.trainable_params(), 0.05, momentum=0.9), 1).set_train()
guard = SpikeGuard()

r = np.random.RandomState(51)
rows = []
for k in range(9):
    x = r.randn(6, 5).astype(np.float32) * (3.0 if k % 4 == 3 else 1.0)
    rows.append((ms.Tensor(x), ms.Tensor(x[:, :1] + 0.5)))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, guard=ck.attributes(guard, "history", "alarms"))
    manager.restore(state)
    for x, y in batches:
        w = guard.weight(float(loss.plain(x, y)))
        cell(x, y, ms.Tensor(w, ms.float32))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
