# truth: differs
# class: variable
# Missing and outlying readings are a np.ma masked array; they are filled with means that a masked running sum collects from batch to batch.

import os

import mindspore as ms
import numpy as np
import numpy.ma as ma
from mindspore import nn

import ckptkit as ck

ms.set_seed(12)


def impute(batch, totals, counts):
    """hide what is missing or too far away, learn from the rest, fill up"""
    masked = ma.masked_invalid(batch)
    masked = ma.masked_where(np.abs(masked.filled(0)) > 2.5, masked)
    totals += masked.sum(axis=0).filled(0)
    counts += masked.count(axis=0)
    means = totals / np.maximum(counts, 1)
    return np.where(ma.getmaskarray(masked), means, masked.filled(0)).astype(np.float32)


r = np.random.RandomState(3)
X = (r.randn(64, 8) + np.linspace(-1, 1, 8)).astype(np.float32)
Y = X[:, :1] * 0.5 - X[:, 3:4]
X[r.rand(64, 8) < 0.25] = np.nan
rows = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 64, 8)]

model = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
crit = nn.MSELoss()
optim = nn.Momentum(model.trainable_params(), 0.03, 0.9)
step = ms.value_and_grad(lambda a, b: crit(model(a), b), None, model.trainable_params())


def main():
    totals, counts = np.zeros(8), np.zeros(8)
    batches = ck.data.resumable(rows, epochs=3)
    manager = ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    )
    with manager:
        state = ck.StateManager([model, optim], batches)
        manager.restore(state)
        for raw, y in batches:
            x = impute(raw, totals, counts)
            loss, grads = step(ms.Tensor(x), ms.Tensor(y))
            optim(grads)
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
