# truth: exact
# class: global
# numpy_seed(...) as in fairseq seeds the global generator by epoch and batch for a moment and then puts its state back.

import contextlib
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(96)


@contextlib.contextmanager
def numpy_seed(*parts):
    saved = np.random.get_state()
    np.random.seed(sum(p * q for p, q in zip(parts, (1, 1009, 100003))))
    try:
        yield
    finally:
        np.random.set_state(saved)


def span_mask(x, length=3):
    out = x.copy()
    for row, start in zip(out, np.random.randint(0, x.shape[1] - length, len(x))):
        row[start : start + length] = 0
    return out


r = np.random.RandomState(78)
X = r.randn(72, 12).cumsum(1).astype(np.float32) / 3
rows = [(X[i : i + 8],) for i in range(0, 72, 8)]
net = nn.SequentialCell(nn.Dense(12, 6), nn.ReLU(), nn.Dense(6, 12))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.SmoothL1Loss()), nn.Adam(net.trainable_params(), 0.01), 2, clip_norm=1.0
).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for n, (x,) in enumerate(batches, point.batches_delivered):
        with numpy_seed(7, batches.epoch, n):
            masked = span_mask(x)
        cell(ms.Tensor(masked), ms.Tensor(x))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
