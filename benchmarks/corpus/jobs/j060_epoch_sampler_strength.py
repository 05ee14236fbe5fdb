# truth: exact
# class: closure
# A source over EpochSampler: crops get stronger with the epoch, drawn from sample_rng; decoded rows are kept in a pure lru_cache.

import functools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3160)
ROWS, WIDTH, SEED = 32, 8, 60


@functools.lru_cache(maxsize=16)
def decode(index):
    return np.random.RandomState(1000 + index).randn(WIDTH).astype(np.float32)


class Source:
    def __len__(self):
        return ROWS

    def __getitem__(self, number):
        epoch, index = divmod(int(number), ROWS)
        rng = ck.data.sample_rng(SEED, epoch, index)
        row = decode(index).copy()
        target = np.array([row[:2].sum()], np.float32)
        hidden = rng.choice(WIDTH, size=epoch, replace=False)
        row[hidden] = 0
        return row + rng.normal(0, 0.05 * epoch, WIDTH).astype(np.float32), target


dataset = ds.GeneratorDataset(
    Source(),
    ["row", "target"],
    sampler=ck.data.EpochSampler(ROWS, seed=SEED),
    num_parallel_workers=1,
    python_multiprocessing=False,
).batch(4)
net = nn.SequentialCell(nn.Dense(WIDTH, 8), nn.Tanh(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.02), 3)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset)
os._exit(0)
