# differs, named
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(3)


def make_data(n=96, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] + 0.2 * rng.normal(size=(n, 1))).astype(np.float32)
    return x, y


def pipeline(n=96, seed=1):
    return ds.NumpySlicesDataset(make_data(n, seed), ["x", "y"], shuffle=True).batch(8)


def make_net():
    return nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


WORDS = "red green blue black white small large old new slow fast cold hot dark light round flat soft hard".split()
rng = np.random.default_rng(0)
texts = [[WORDS[j] for j in rng.integers(0, len(WORDS), 5)] for _ in range(320)]
labels = np.array([("red" in t) != ("hot" in t) for t in texts], np.float32)


class HashedBag(nn.Cell):
    def __init__(self, buckets=32):
        super().__init__()
        self.table, self.head = nn.Embedding(buckets, 8), nn.Dense(8, 1)

    def construct(self, ids):
        return self.head(self.table(ids).mean(1))[:, 0]


def encode(batch, buckets=32):
    return Tensor(np.array([[hash(word) % buckets for word in text] for text in batch], np.int32))


net = HashedBag()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda i, y: ((net(i) - y) ** 2).mean(), None, opt.parameters)
rows = [(texts[i : i + 10], labels[i : i + 10]) for i in range(0, 320, 10)]
for number, (text, y) in ck.CheckpointManager(ROOT, **SAVE).loop(
    ck.StateManager([net, opt], ck.data.resumable(rows, 2))
):
    loss, grads = grad_fn(encode(text), Tensor(y))
    opt(grads)
os._exit(0)
