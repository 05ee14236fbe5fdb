# exact
"""Random numbers that follow from the position alone."""

import numpy as np
from base import train

import ckptkit as ck


class Samples:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        x = np.random.default_rng((3, index)).normal(size=(4, 6)).astype(np.float32)
        return x, x[:, :1]


train(lambda x: x, [tuple(map(__import__("mindspore").Tensor, Samples()[index])) for index in range(10)])
assert ck
