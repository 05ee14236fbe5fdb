# truth: differs
# class: global
# The width of the Huber loss is the upper quartile of all absolute residuals so far, by the statistics module.

import os
import statistics

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(19)


class Huber(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, x, y, delta):
        error = ops.abs(self.net(x) - y)
        quadratic = ops.minimum(error, delta)
        return (0.5 * quadratic * quadratic + delta * (error - quadratic)).mean()


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(Huber(net), nn.Adam(net.trainable_params(), 0.02), 2).set_train()

r = np.random.RandomState(14)
x_all = r.randn(64, 8).astype(np.float32)
y_all = (x_all[:, :1] + 0.2 * r.standard_t(2, size=(64, 1))).astype(np.float32)
rows = [(ms.Tensor(x_all[i : i + 8]), ms.Tensor(y_all[i : i + 8])) for i in range(0, 64, 8)]
residuals = [1.0, 1.0]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        delta = statistics.quantiles(residuals, n=4, method="inclusive")[2]
        cell(x, y, ms.Tensor(delta, ms.float32))
        residuals.extend(abs(float(e)) for e in (net(x) - y).asnumpy().ravel())
        manager.step(state)
    print(f"median residual {statistics.median(residuals):.4f}")
    manager.save_final(state)
os._exit(0)
