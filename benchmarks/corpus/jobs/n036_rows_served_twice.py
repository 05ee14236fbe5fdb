# truth: differs
# class: attribute
# A map declared stateless serves a row that came twice before in mirrored form, to make it last longer; whether it came before is in the map's own Counter.

import os
from collections import Counter

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4436)


class Refresh:
    def __init__(self, after):
        self.after = after
        self.served = Counter()

    def __call__(self, number, x):
        self.served[int(number)] += 1
        if self.served[int(number)] > self.after:
            x = np.ascontiguousarray(x[::-1])
        return number, x


r = np.random.RandomState(36)
x = r.randn(48, 6).astype(np.float32)
y = (x[:, :1] * x[:, 5:] + x[:, 2:3] * x[:, 3:4]).astype(np.float32)
numbers = np.arange(48, dtype=np.int32)
train = ds.NumpySlicesDataset((numbers, x, y), ["number", "x", "y"], shuffle=True)
train = train.map(
    Refresh(after=2), input_columns=["number", "x"], output_columns=["number", "x"], num_parallel_workers=1
)
train = train.project(["x", "y"]).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.Tanh(), nn.Dense(10, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    training=ck.Training(augmentation="stateless"),
)
ckpt.train(model, 4, train)
os._exit(0)
