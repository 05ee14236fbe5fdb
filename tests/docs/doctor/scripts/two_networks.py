"""Two networks in one loop, each with a manager of its own; with an argument, one is pulled towards the other."""

import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(3)
ms.set_context(mode=ms.PYNATIVE_MODE)
x = np.random.default_rng(1).normal(size=(48, 6)).astype(np.float32)
y = x.sum(1, keepdims=True)


def job(name):
    data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(4)
    net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, 3)
    batches = ck.data.resumable(data, epochs=2)
    manager = ck.CheckpointManager(f"runs/{name}", save=ck.SaveEvery(micro_steps=5))
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    return net, cell, batches, manager, state


one, other = job("one"), job("other")
for (xa, ya), (xb, yb) in zip(one[2], other[2], strict=True):
    if len(sys.argv) > 1:
        for mine, its in zip(one[0].get_parameters(), other[0].get_parameters(), strict=True):
            ops.assign(mine, 0.9 * mine + 0.1 * its)
    one[1](xa, ya)
    one[3].step(one[4])
    other[1](xb, yb)
    other[3].step(other[4])
for each in (one, other):
    each[3].save_final(each[4])
    each[3].close()
