# truth: exact
# class: attribute
# Truncated back-propagation: the hidden state is carried over in a Parameter that does not require gradients.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn, ops

import ckptkit as ck

ms.set_seed(27)
ms.set_context(mode=ms.GRAPH_MODE)
B, T, F, H = 4, 5, 4, 8


class CarriedRNN(nn.Cell):
    def __init__(self):
        super().__init__()
        self.i2h = nn.Dense(F, H)
        self.h2h = nn.Dense(H, H)
        self.h2o = nn.Dense(H, F)
        self.hidden = Parameter(ops.zeros((B, H), ms.float32), name="carried", requires_grad=False)

    def construct(self, x, y):
        h = ops.stop_gradient(self.hidden + 0.0)
        total = 0.0
        for t in range(T):
            h = ops.tanh(self.i2h(x[:, t]) + self.h2h(h))
            total = total + ((self.h2o(h) - y[:, t]) ** 2).mean()
        total = ops.depend(total, ops.assign(self.hidden, ops.stop_gradient(h)))
        return total / T


def windows(length=8):
    t = np.arange(B * (length * T + 1)).reshape(B, -1) * 0.21
    series = np.stack([np.sin(t * (k + 1)) for k in range(F)], -1).astype(np.float32)
    for w in range(length):
        s = slice(w * T, w * T + T)
        e = slice(w * T + 1, w * T + T + 1)
        yield ms.Tensor(series[:, s]), ms.Tensor(series[:, e])


rnn = CarriedRNN()
cell = ck.AccumulationTrainCell(rnn, nn.Adam(rnn.trainable_params(), 0.01), 2, clip_norm=1.0)
cell.set_train()
batches = ck.data.resumable(list(windows()), epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        loss = cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
