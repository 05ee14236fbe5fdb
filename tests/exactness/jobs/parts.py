"""What many jobs are built of, since what is special to them is elsewhere."""

from __future__ import annotations

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

SAMPLES, FEATURES, CLASSES, BATCH = 48, 8, 3, 6
EPOCHS, K = 2, 3


def arrays():
    rng = np.random.default_rng(5)
    y = np.arange(SAMPLES, dtype=np.int32) % CLASSES
    return rng.standard_normal((SAMPLES, FEATURES), np.float32) + y[:, None].astype(np.float32), y


def slices():
    return ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True).batch(BATCH)


def rows():
    """Batches in a list."""
    x, y = arrays()
    return [(ms.Tensor(x[i : i + BATCH]), ms.Tensor(y[i : i + BATCH])) for i in range(0, SAMPLES, BATCH)]


class Net(nn.Cell):
    def __init__(self, out=CLASSES):
        super().__init__()
        self.hidden = nn.Dense(FEATURES, 8)
        self.out = nn.Dense(8, out)

    def construct(self, x):
        return self.out(ops.tanh(self.hidden(x)))


class Loss(nn.Cell):
    def __init__(self, network=None):
        super().__init__()
        self.network = network if network is not None else Net()

    def construct(self, x, y):
        return ops.cross_entropy(self.network(x), y)


def adam(cell):
    return nn.Adam(cell.trainable_params(), 1e-2)


def accumulating(loss=None, optimizer=None, **options):
    """A train cell."""
    loss = loss if loss is not None else Loss()
    return ck.AccumulationTrainCell(loss, optimizer or adam(loss), K, **options).set_train()


def train(run, loss=None, optimizer=None, callbacks=None, **options):
    """`Model.train` of a loss cell, accumulating."""
    run.train(ms.Model(accumulating(loss, optimizer)), EPOCHS, slices(), callbacks, **options)


def rate_of(cell):
    """The rate of a train cell, a Parameter."""
    return cell.optimizer.learning_rate


def looped(run, step, cell=None, data=None, **stateful):
    """A loop that calls ``step`` with the number of the batch."""
    cell = cell if cell is not None else accumulating()
    batches = ck.data.resumable(data if data is not None else slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches, **stateful)
        point = manager.restore(state)
        run.begin(point)
        for at, (x, y) in enumerate(batches, point.batches_delivered):
            run.step((x, y), step(cell, at, x, y), cell=cell)
            manager.step(state)
