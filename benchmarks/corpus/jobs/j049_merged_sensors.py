# truth: exact
# class: random
# Three sensors with clocks of their own are interleaved by heapq.merge; all generators are made in __iter__ from seeds, so replay is exact.

import heapq
import itertools
import os
import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3149)


def sensor(number, seed):
    """endless (time, sensor, value) events"""
    rng = random.Random(seed)
    t, level = 0.0, 0.0
    while True:
        t += rng.expovariate(1.0 + number)
        level = 0.9 * level + rng.gauss(0, 1)
        yield t, number, level


class Interleaved:
    def __init__(self, sensors, events, batches):
        self.sensors, self.events, self.batches = sensors, events, batches

    def __iter__(self):
        merged = heapq.merge(*(sensor(i, 100 + i) for i in range(self.sensors)))
        for _ in range(self.batches):
            chunk = list(itertools.islice(merged, self.events))
            x = np.zeros((len(chunk), self.sensors + 1), np.float32)
            for row, (t, i, v) in zip(x, chunk):
                row[i], row[-1] = 1.0, np.sin(t)
            yield x, np.array([[v] for _, _, v in chunk], np.float32)

    def __len__(self):
        return self.batches


net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.02, 0.9), 3
).set_train()
batches = ck.data.resumable(Interleaved(3, 10, 8), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(Tensor(x), Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
