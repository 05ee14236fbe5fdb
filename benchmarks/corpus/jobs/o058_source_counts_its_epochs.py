# truth: exact
# class: outside
# A GeneratorDataset over an iterable that counts its epochs: each one is harder and has an order of its own by (seed, epoch). One worker; a resume replays the pipeline from its beginning.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import LossMonitor

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3558)


class HarderEachEpoch:
    def __init__(self, x, y, seed):
        self.x, self.y, self.seed = x, y, seed
        self.epoch = 0

    def __iter__(self):
        rng = np.random.default_rng([self.seed, self.epoch])
        noise = 0.1 * self.epoch
        self.epoch += 1
        for number in rng.permutation(len(self.x)):
            row = self.x[number] + noise * rng.standard_normal(self.x.shape[1])
            yield row.astype(np.float32), self.y[number]

    def __len__(self):
        return len(self.x)


r = np.random.RandomState(58)
x = r.randn(54, 5).astype(np.float32)
y = (np.abs(x[:, :1]) - x[:, 1:2] * x[:, 2:3]).astype(np.float32)
train = ds.GeneratorDataset(HarderEachEpoch(x, y, seed=58), ["x", "y"], num_parallel_workers=1, shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 12), nn.ReLU(), nn.Dense(12, 1))
model = ms.Model(net, nn.MSELoss(), nn.AdamWeightDecay(net.trainable_params(), 0.02, weight_decay=0.01))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[LossMonitor(9)])
os._exit(0)
