# truth: exact
# class: attribute
# One frozen base and three LoRA adapters by turns: the number of the batch says whose turn it is, a one-hot vector switches in the graph; base as frozen=. GRAPH, K = 3.

import os
from collections import Counter

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4454)
WIDTH, RANK = 6, 2
TASKS = ("de", "fr", "zh")


class SwitchedLoRA(nn.Cell):
    def __init__(self):
        super().__init__()
        r = np.random.RandomState(54)
        self.count = len(TASKS)
        self.base = nn.Dense(WIDTH, WIDTH)
        self.head = nn.Dense(WIDTH, 1)
        for p in self.get_parameters():
            p.requires_grad = False
        self.down = ms.ParameterTuple(
            [ms.Parameter((0.3 * r.randn(WIDTH, RANK)).astype(np.float32), name=f"lora_down_{t}") for t in TASKS]
        )
        self.up = ms.ParameterTuple(
            [ms.Parameter(np.zeros((RANK, WIDTH), np.float32), name=f"lora_up_{t}") for t in TASKS]
        )

    def construct(self, x, y, active):
        hidden = self.base(x)
        for number in range(self.count):
            hidden = hidden + active[number] * ops.matmul(ops.matmul(x, self.down[number]), self.up[number])
        return ((self.head(ops.tanh(hidden)) - y) ** 2).mean()


r = np.random.RandomState(154)
rows = []
for number in range(9):
    x = r.randn(6, WIDTH).astype(np.float32)
    task = number % len(TASKS)
    y = x[:, task : task + 1] * x[:, 5:] - x[:, 4:5]
    rows.append((ms.Tensor(x), ms.Tensor(y.astype(np.float32))))
net = SwitchedLoRA()
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
cell = ck.AccumulationTrainCell(net, opt, accumulation_steps=3).set_train()
switches = [ms.Tensor(row) for row in np.eye(len(TASKS), dtype=np.float32)]
active, turns = None, Counter()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, frozen=lambda name: "lora" not in name)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        if active != at % len(TASKS):
            active = at % len(TASKS)
            turns[TASKS[active]] += 1
        cell(x, y, switches[active])
        manager.step(state)
    manager.save_final(state)
print("turns in this start:", dict(turns))
os._exit(0)
