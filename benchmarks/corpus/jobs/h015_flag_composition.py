# truth: exact, may be named
# class: attribute
# Which regularizers act is an enum.Flag; one bit more or less is toggled whenever the loss has risen since the batch before.

import enum
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(61)


class Reg(enum.Flag):
    NONE = 0
    L1 = enum.auto()
    L2 = enum.auto()
    ACT = enum.auto()


ORDER = (Reg.L1, Reg.L2, Reg.ACT)


class Objective(nn.Cell):
    def __init__(self):
        super().__init__()
        self.hidden = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU())
        self.out = nn.Dense(8, 1)

    def construct(self, x, y, flags):
        h = self.hidden(x)
        w = self.out.weight
        penalty = ops.stack([ops.abs(w).mean(), (w * w).mean(), (h * h).mean()])
        return ((self.out(h) - y) ** 2).mean() + 0.1 * (penalty * flags).sum()


objective = Objective()
cell = ck.AccumulationTrainCell(objective, nn.Adam(objective.trainable_params(), 0.01), 1).set_train()
r = np.random.RandomState(24)
rows = []
for k in range(9):
    x = r.randn(5, 6).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] + k % 3).astype(np.float32))))

active, turn, last = Reg.L2, 0, None
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        bits = ms.Tensor([1.0 if flag in active else 0.0 for flag in ORDER], ms.float32)
        loss = float(cell(x, y, bits).asnumpy())
        if last is not None and loss > last:
            active ^= ORDER[turn % 3]
            turn += 1
        last = loss
        manager.step(state)
    print("at the end", active)
    manager.save_final(state)
os._exit(0)
