# truth: exact, may be named
# class: outside
# As in open_clip, the source reads the epoch from a multiprocessing.Value that its workers could share; the loop sets it from the restored position.

import os
from multiprocessing import Value

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4345)


class SharedEpoch:
    def __init__(self, epoch=0):
        self.shared_epoch = Value("i", epoch)

    def set_value(self, epoch):
        self.shared_epoch.value = epoch

    def get_value(self):
        return self.shared_epoch.value


class Shards:
    """rows with noise that grows with the epoch; the noise is made of epoch and shard"""

    def __init__(self, x, y, shards, epoch):
        self.parts = list(zip(np.array_split(x, shards), np.array_split(y, shards)))
        self.epoch = epoch

    def __len__(self):
        return len(self.parts)

    def __iter__(self):
        for shard, (x, y) in enumerate(self.parts):
            epoch = self.epoch.get_value()
            rng = np.random.default_rng([445, epoch, shard])
            yield (x + 0.1 * epoch * rng.standard_normal(x.shape)).astype(np.float32), y


r = np.random.RandomState(45)
x = r.randn(48, 5).astype(np.float32)
y = (np.abs(x[:, :1]) - x[:, 1:2]).astype(np.float32)
epoch = SharedEpoch()
shards = Shards(x, y, 8, epoch)
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.03, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(shards, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    epoch.set_value(point.batches_delivered // len(shards))
    for number, (a, b) in enumerate(batches, point.batches_delivered + 1):
        loss, grads = gradients(ms.Tensor(a), ms.Tensor(b))
        opt(grads)
        epoch.set_value(number // len(shards))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
