"""What all the scripts beside it train: a small network on made-up numbers."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)

SIZE = 7  # batches per epoch


class Net(nn.Cell):
    def __init__(self, drop=None):
        super().__init__()
        self.hidden = nn.Dense(6, 64)
        self.drop = drop
        self.out = nn.Dense(64, 3)

    def construct(self, x, y):
        hidden = ops.tanh(self.hidden(x))
        if self.drop is not None:
            hidden = self.drop(hidden)
        return ops.square(self.out(hidden) - y).mean()


def data(generator=None):
    generator = generator or np.random.default_rng(3)
    x, y = (generator.standard_normal((SIZE * 4, width)).astype(np.float32) for width in (6, 3))
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True)


def optimizer_of(net):
    return nn.Momentum(net.trainable_params(), 0.05, 0.9)
