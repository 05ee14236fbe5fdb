# truth: exact, may be named
# class: data
# A second source is indexed by the number of the batch, and the length of sequences grows by a table of milestones; both begin at the restored position.

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from sortedcontainers import SortedDict

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3151)

LENGTHS = SortedDict({0: 3, 6: 5, 13: 7, 19: 9})


def length_at(batch):
    return LENGTHS.peekitem(LENGTHS.bisect_right(batch) - 1)[1]


class Reader(nn.Cell):
    def __init__(self):
        super().__init__()
        self.step, self.out = nn.Dense(5, 4), nn.Dense(4, 1)

    def construct(self, seq, y):
        h = ops.zeros((seq.shape[0], 4), ms.float32)
        for t in range(seq.shape[1]):
            h = ops.tanh(self.step(ops.concat((seq[:, t : t + 1], h), -1)))
        return ((self.out(h) - y) ** 2).mean()


r = np.random.RandomState(51)
first = [(s, s[:, :3].mean(1, keepdims=True)) for s in r.randn(8, 5, 9).astype(np.float32)]
second = [0.3 * s.astype(np.float32) for s in r.randn(7, 5, 9)]

net = Reader()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.03), 1).set_train()
batches = ck.data.resumable(first, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    longest = 0
    for at, (s, y) in enumerate(batches, point.batches_delivered):
        n = length_at(at)
        longest = max(longest, n)
        mixed = np.asarray(s)[:, :n] + second[at % len(second)][:, :n]
        cell(Tensor(mixed), Tensor(y))
        manager.step(state)
    print("longest sequence in this start:", longest)
    manager.save_final(state)
os._exit(0)
