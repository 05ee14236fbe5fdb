# truth: exact
# class: data
# MindSpore's WeightedRandomSampler draws rare classes more often; the pipeline is seeded, and Model.train runs in GRAPH mode with K = 3.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor, TimeMonitor

import ckptkit as ck

ms.set_seed(97)
ms.set_context(mode=ms.GRAPH_MODE)

r = np.random.RandomState(79)
label = r.choice(3, size=64, p=[0.7, 0.2, 0.1]).astype(np.int32)
X = (r.randn(64, 8) + 1.2 * np.eye(3, 8)[label]).astype(np.float32)
frequency = np.bincount(label, minlength=3)
weights = (1.0 / np.maximum(frequency, 1))[label]


class Rows:
    def __getitem__(self, index):
        return X[index], label[index]

    def __len__(self):
        return len(X)


sampler = ds.WeightedRandomSampler([float(w) for w in weights], num_samples=64, replacement=True)
dataset = ds.GeneratorDataset(Rows(), ["x", "label"], sampler=sampler, num_parallel_workers=1).batch(8)

net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 3))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.CrossEntropyLoss()),
    nn.Momentum(net.trainable_params(), learning_rate=0.05, momentum=0.9),
    accumulation_steps=3,
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, dataset, callbacks=[TimeMonitor(), LossMonitor(4)])
os._exit(0)
