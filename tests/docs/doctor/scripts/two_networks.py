"""Two networks in one loop, each with a manager of its own."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

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
    return cell, batches, manager, state


one, other = job("one"), job("other")
for (xa, ya), (xb, yb) in zip(one[1], other[1], strict=True):
    one[0](xa, ya)
    one[2].step(one[3])
    other[0](xb, yb)
    other[2].step(other[3])
for each in (one, other):
    each[2].save_final(each[3])
    each[2].close()
