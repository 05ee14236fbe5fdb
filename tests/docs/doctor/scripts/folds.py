"""Cross-validation: each fold is a run of its own, and begins when the one before has ended."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(3)
x = np.random.default_rng(1).normal(size=(48, 6)).astype(np.float32)
y = x.sum(1, keepdims=True)
for fold in range(2):
    mine = np.arange(48) % 2 == fold
    data = ds.NumpySlicesDataset((x[mine], y[mine]), ["x", "y"], shuffle=True).batch(4)
    net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
    optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
    cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, 3)
    ckpt = ck.CheckpointCallback(f"runs/fold-{fold}", save=ck.SaveEvery(micro_steps=5))
    ckpt.train(ms.Model(cell), 2, data)
