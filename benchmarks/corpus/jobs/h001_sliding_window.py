# truth: differs
# class: attribute
# Forecasting on a stream: the recent inputs are a NumPy ring buffer, rolled in place, of which a strided window view gives lag features.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
from numpy.lib.stride_tricks import sliding_window_view

import ckptkit as ck

ms.set_seed(5)
LAGS, KEEP = 4, 19


class LagBuffer:
    """the last KEEP values of the signal; `windows` is a view, so it always shows what is in there"""

    def __init__(self):
        self.values = np.zeros(KEEP, np.float32)
        self.windows = sliding_window_view(self.values, LAGS)

    def push(self, chunk):
        n = len(chunk)
        self.values[:-n] = self.values[n:].copy()
        self.values[-n:] = chunk

    def lags(self):
        return np.ascontiguousarray(self.windows)


t = np.arange(24 * 8, dtype=np.float32)
signal = (np.sin(t / 5) + 0.3 * np.cos(t / 2.3)).astype(np.float32)
chunks = [(signal[i : i + 8],) for i in range(0, 8 * 8, 8)]

net = nn.SequentialCell(nn.Dense(LAGS, 8), nn.Tanh(), nn.Dense(8, 1))
loss_cell = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss_cell, nn.Adam(net.trainable_params(), 0.01), 1).set_train()
buffer = LagBuffer()

batches = ck.data.resumable(chunks, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for (chunk,) in batches:
        buffer.push(chunk)
        rows = buffer.lags()  # (KEEP - LAGS + 1, LAGS)
        x, y = rows[:-1], rows[1:, -1:]
        loss = cell(ms.Tensor(np.ascontiguousarray(x)), ms.Tensor(np.ascontiguousarray(y)))
        manager.step(state)
    print("last loss", float(loss.asnumpy()))
    manager.save_final(state)
os._exit(0)
