# truth: differs
# class: global
# K = 4: the loop collects the losses of the running cycle in an array("d") and sets the next cycle's learning rate by their spread.

import os
from array import array

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(79)
BASE = 0.02

r = np.random.RandomState(20)
X = r.randn(8, 6, 8).astype(np.float32)
Y = (X[..., :2] * np.arange(1, 9)[:, None, None] / 4).astype(np.float32)
rows = [(ms.Tensor(x), ms.Tensor(y)) for x, y in zip(X, Y)]

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 2))
optimizer = nn.Adam(net.trainable_params(), learning_rate=BASE)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, accumulation_steps=4).set_train()

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    of_cycle = array("d")
    for x, y in batches:
        loss = cell(x, y)
        of_cycle.append(float(loss.asnumpy()))
        if cell.updated:
            spread = max(of_cycle) - min(of_cycle)
            mean = sum(of_cycle) / len(of_cycle)
            manager.fence()
            ops.assign(optimizer.learning_rate, ms.Tensor(BASE / (1 + spread / (mean + 1e-6)), ms.float32))
            del of_cycle[:]
        manager.step(state)
    manager.save_final(state)
os._exit(0)
