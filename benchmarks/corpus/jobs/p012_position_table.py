# truth: exact
# class: closure
# A tiny attention model with a sinusoidal table that is computed once per length and cached.

import functools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(112)


@functools.lru_cache(maxsize=None)
def positions(length, width):
    at = np.arange(length)[:, None] / 100.0 ** (2 * (np.arange(width)[None] // 2) / width)
    at[:, 0::2], at[:, 1::2] = np.sin(at[:, 0::2]), np.cos(at[:, 1::2])
    return ms.Tensor(at.astype(np.float32))


class TinyAttention(nn.Cell):
    def __init__(self, vocabulary=20, width=8, length=6):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.table = positions(length, width)
        self.q, self.k, self.v = nn.Dense(width, width), nn.Dense(width, width), nn.Dense(width, width)
        self.head = nn.Dense(width, 3)
        self.softmax = nn.Softmax(-1)

    def construct(self, tokens):
        h = self.embed(tokens) + self.table
        weights = self.softmax(ops.bmm(self.q(h), self.k(h).swapaxes(1, 2)) / 2.8)
        return self.head(ops.bmm(weights, self.v(h)).mean(1))


r = np.random.RandomState(12)
tokens = r.randint(0, 20, (90, 6)).astype(np.int32)
label = (tokens[:, :3].sum(1) % 3).astype(np.int32)
train = ds.NumpySlicesDataset((tokens[:64], label[:64]), ["tokens", "label"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((tokens[64:], label[64:]), ["tokens", "label"], shuffle=False).batch(13)

net = TinyAttention()
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = ms.Model(net, loss, nn.Adam(net.trainable_params(), 1e-2), metrics={"accuracy"})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 4, train, valid, callbacks=[ms.train.LossMonitor(8)])
os._exit(0)
