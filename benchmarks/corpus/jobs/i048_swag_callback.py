# truth: differs
# class: callback
# SWAG in a callback: mean and second moment of the weights over the epochs are kept as flat NumPy vectors, and each epoch begins at a sample of them.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, Model

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(348)


class SWAG(Callback):
    def __init__(self, params, scale=0.5):
        super().__init__()
        self.params = list(params)
        self.scale = scale
        size = sum(int(np.prod(p.shape)) for p in self.params)
        self.mean, self.square, self.models = np.zeros(size), np.zeros(size), 0

    def flat(self):
        return np.concatenate([p.asnumpy().ravel() for p in self.params]).astype(np.float64)

    def unflatten(self, vector):
        at = 0
        for p in self.params:
            n = int(np.prod(p.shape))
            ops.assign(p, ms.Tensor(vector[at : at + n].reshape(p.shape).astype(np.float32)))
            at += n

    def on_train_epoch_end(self, run_context):
        epoch = run_context.original_args().cur_epoch_num
        w = self.flat()
        self.mean = (self.mean * self.models + w) / (self.models + 1)
        self.square = (self.square * self.models + w * w) / (self.models + 1)
        self.models += 1
        std = np.sqrt(np.maximum(self.square - self.mean**2, 0))
        z = np.random.RandomState(epoch).randn(len(w))
        self.unflatten(self.mean + self.scale * std * z)


r = np.random.RandomState(48)
x = r.randn(32, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2]).astype(np.float32)
dataset = ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(4)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, dataset, callbacks=[SWAG(net.get_parameters())])
os._exit(0)
