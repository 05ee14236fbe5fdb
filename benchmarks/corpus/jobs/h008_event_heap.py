# truth: differs
# class: attribute
# A small event scheduler (heapq of due time, number and action) raises dropout-like noise and resets it; actions put themselves in again.

import heapq
import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(50)


class Agenda:
    def __init__(self):
        self.now = 0
        self.heap = []
        self.serial = itertools.count()

    def after(self, delay, action):
        heapq.heappush(self.heap, (self.now + delay, next(self.serial), action))

    def tick(self):
        self.now += 1
        while self.heap and self.heap[0][0] <= self.now:
            _, _, action = heapq.heappop(self.heap)
            action()


class InputScale:
    def __init__(self, agenda):
        self.agenda, self.scale = agenda, 1.0
        agenda.after(3, self.shrink)

    def shrink(self):
        self.scale *= 0.8
        self.agenda.after(3 if self.scale > 0.5 else 7, self.shrink if self.scale > 0.5 else self.relax)

    def relax(self):
        self.scale = 1.0
        self.agenda.after(4, self.shrink)


agenda = Agenda()
augment = InputScale(agenda)
net = nn.SequentialCell(nn.Dense(8, 6), nn.ReLU(), nn.Dense(6, 3))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()), nn.SGD(net.trainable_params(), 0.1, momentum=0.5), 1
).set_train()

r = np.random.RandomState(7)
rows = [
    (ms.Tensor(r.randn(6, 8).astype(np.float32)), ms.Tensor((np.arange(6) % 3).astype(np.int32))) for _ in range(10)
]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        agenda.tick()
        cell(x * augment.scale, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
