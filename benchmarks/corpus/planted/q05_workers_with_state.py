# exact
"""A worker that counts the samples that it has made: a resume makes them again, so that it counts on."""

import mindspore.dataset as ds
import numpy as np
from base import train


class Samples:
    def __init__(self):
        self.made = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.made += 1
        x = np.random.default_rng(index).normal(size=6).astype(np.float32) * (1 + self.made / 40)
        return x, x[:1]


train(
    lambda x: x,
    ds.GeneratorDataset(
        Samples(), ["x", "y"], shuffle=False, num_parallel_workers=1, python_multiprocessing=True
    ).batch(4),
)
