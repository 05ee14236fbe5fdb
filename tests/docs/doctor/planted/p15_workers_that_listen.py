# differs
"""Worker processes that read how difficult samples should be from memory that the loop changes.

How far they have read ahead is a race, so that the doctor may see it at the samples, the batch or the loop's line.
"""

import multiprocessing

import mindspore.dataset as ds
import numpy as np
from base import train

level = multiprocessing.Value("d", 0.0)


class Samples:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        x = np.random.default_rng(index).normal(size=6).astype(np.float32)
        return np.float32(x * (1 + level.value)), x[:1]


def harder(x):
    level.value += 0.1
    return x * 1.0


source = ds.GeneratorDataset(Samples(), ["x", "y"], shuffle=False, num_parallel_workers=2, python_multiprocessing=True)
train(harder, source.batch(4))
