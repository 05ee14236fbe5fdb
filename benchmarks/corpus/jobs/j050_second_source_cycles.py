# truth: differs
# class: iterator
# Semi-supervised: a labeled and an unlabeled source run side by side in zip; the unlabeled one is an endless cycle over seven batches.

import os
from itertools import cycle

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3150)


class Consistency(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y, u):
        fit = ((self.net(x) - y) ** 2).mean()
        return fit + 0.5 * ((self.net(u) - self.net(u * 0.8)) ** 2).mean() + 0.1 * ops.abs(self.net(u)).mean()


def main():
    r = np.random.RandomState(50)
    labeled = [(a, a[:, :1] * a[:, 1:2]) for a in r.randn(8, 4, 5).astype(np.float32)]
    unlabeled = [(2 * a).astype(np.float32) for a in r.randn(7, 9, 5)]
    loss = Consistency(nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1)))
    cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), 1).set_train()
    batches = ck.data.resumable(labeled, epochs=3)
    with ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager:
        state = ck.StateManager(cell, batches)
        manager.restore(state)
        for (x, y), u in zip(batches, cycle(unlabeled)):
            cell(Tensor(x), Tensor(y), Tensor(u))
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
