# truth: exact
# class: data
# Audio: random time shift and gain in a source of one's own over ck.data.EpochSampler, generator of (seed, epoch, index); Model.train.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor, Model

import ckptkit as ck

ms.set_seed(29)
SEED, N, LENGTH = 29, 48, 32


class Clips:
    """Sine waves of two classes of frequency."""

    def __init__(self):
        rs = np.random.RandomState(SEED)
        self.labels = rs.randint(0, 2, N).astype(np.int32)
        time = np.arange(LENGTH) / LENGTH
        freq = np.where(self.labels == 1, 5.0, 3.0) + rs.randn(N) * 0.2
        self.waves = np.sin(2 * np.pi * freq[:, None] * time).astype(np.float32)

    def __len__(self):
        return N

    def __getitem__(self, number):
        epoch, index = divmod(int(number), N)
        rng = ck.data.sample_rng(SEED, epoch, index)
        wave = np.roll(self.waves[index], int(rng.integers(0, LENGTH)))
        wave = wave * np.float32(rng.uniform(0.7, 1.3))
        return wave[None, :].astype(np.float32), self.labels[index]


def build_dataset():
    sampler = ck.data.EpochSampler(N, seed=SEED)
    return ds.GeneratorDataset(Clips(), ["wave", "label"], sampler=sampler, num_parallel_workers=1).batch(6)


def build_network():
    return nn.SequentialCell(
        nn.Conv1d(1, 4, 5, stride=2, pad_mode="same", has_bias=True),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(4 * LENGTH // 2, 2),
    )


network = build_network()
loss = nn.WithLossCell(network, nn.CrossEntropyLoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(network.trainable_params(), learning_rate=0.01), 4, clip_norm=2.0)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(Model(cell), 3, build_dataset(), callbacks=[LossMonitor(4)])
os._exit(0)
