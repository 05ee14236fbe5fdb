"""What all the scripts beside it train: a small network on made-up numbers."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE)

SIZE = 7  # batches per epoch


class Net(nn.Cell):
    def __init__(self, drop=None, width=64):
        super().__init__()
        self.hidden = nn.Dense(6, width)
        self.drop = drop
        self.out = nn.Dense(width, 3)

    def construct(self, x, y):
        hidden = ops.tanh(self.hidden(x))
        if self.drop is not None:
            hidden = self.drop(hidden)
        return ops.square(self.out(hidden) - y).mean()


def numbers(batch=4):
    generator = np.random.default_rng(3)
    x = generator.standard_normal((SIZE * batch, 6)).astype(np.float32)
    y = generator.standard_normal((SIZE * batch, 3)).astype(np.float32)
    return x, y


def data(shuffle=True):
    return ds.NumpySlicesDataset(numbers(), ["x", "y"], shuffle=shuffle)


def optimizer_of(net):
    return nn.Momentum(net.trainable_params(), 0.05, 0.9)
