# truth: exact
# class: data
# 多个数据源：两个 NumPy 源先拼接再与第三个压缩，纯 numpy 变换，Model.train，PYNATIVE，K = 3。 (zip and concat of sources)

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import LossMonitor, TimeMonitor

import ckptkit as ck

ms.set_seed(40)
ms.set_context(mode=ms.PYNATIVE_MODE)


def source(seed, n, shift):
    r = np.random.RandomState(seed)
    x = (r.randn(n, 6) + shift).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x}, shuffle=True)


def normalise(x):
    """只依赖输入"""
    return ((x - x.mean()) / (x.std() + 1e-3)).astype(np.float32)


def build():
    both = source(1, 30, 0.0) + source(2, 24, 1.0)
    both = both.map(normalise, input_columns="x", num_parallel_workers=1)
    noise = np.random.RandomState(3).randn(54, 6).astype(np.float32)
    third = ds.NumpySlicesDataset({"z": noise}, shuffle=True)
    return ds.zip((both, third)).batch(6, drop_remainder=True)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.enc = nn.Dense(6, 10)
        self.dec = nn.Dense(10, 6)
        self.norm = nn.LayerNorm((10,))

    def construct(self, x, z):
        h = ops.relu(self.norm(self.enc(x + 0.1 * z)))
        return ops.square(self.dec(h) - x).mean()


net = Net()
opt = nn.AdamWeightDecay(net.trainable_params(), learning_rate=0.01, weight_decay=0.05)
cell = ck.AccumulationTrainCell(net, opt, accumulation_steps=3, remainder="flush")
ckpt = ck.CheckpointCallback(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
    training=ck.Training(augmentation="stateless"),
)
ckpt.train(ms.Model(cell), 3, build(), callbacks=[LossMonitor(9), TimeMonitor()])
os._exit(0)
