"""What many jobs are built of."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

SAMPLES, FEATURES, CLASSES, BATCH = 48, 8, 3, 6
EPOCHS, K = 2, 3
STEPS = SAMPLES // BATCH  # of an epoch; K does not divide it, so cycles run across the ends of epochs


def arrays():
    rng = np.random.default_rng(5)
    y = np.arange(SAMPLES, dtype=np.int32) % CLASSES
    return rng.standard_normal((SAMPLES, FEATURES), np.float32) + y[:, None].astype(np.float32), y


def slices(batch=BATCH):
    return ds.NumpySlicesDataset(arrays(), ["x", "y"], shuffle=True).batch(batch)


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


def accumulating(loss=None):
    loss = loss if loss is not None else Loss()
    return ck.AccumulationTrainCell(loss, adam(loss), K).set_train()
