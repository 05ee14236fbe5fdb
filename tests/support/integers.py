"""A network whose arithmetic is exact in float32, so that sums in another order have the same bits.

Inputs and weights are small integers and every divisor is a power of two: nothing is ever rounded.
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

WIDTH = 5


class Linear(nn.Cell):
    """The mean over the micro-batch of ``w . x``; its gradient is the mean of ``x``."""

    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(ms.Tensor(np.arange(WIDTH), ms.float32), name="w")

    def construct(self, x):
        return ops.reduce_sum(self.w * x, 1).mean()


class Tokens(Linear):
    """The sum over the tokens of ``w . x``, and their number; a token is a row whose mask is 1."""

    def construct(self, x, mask):
        return ops.reduce_sum(self.w * x * ops.reshape(mask, (-1, 1))), ops.reduce_sum(mask)


def rows(count, seed=0):
    return np.random.default_rng(seed).integers(-8, 9, (count, WIDTH)).astype(np.float32)


def momentum(network):
    # No decay and a power of two: the updates are exact, too.
    return nn.Momentum(network.trainable_params(), 0.25, 0.5)
