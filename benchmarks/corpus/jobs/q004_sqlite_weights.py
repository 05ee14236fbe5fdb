# truth: differs
# class: iterator
# Losses of samples go to an SQLite file in the working folder; the weight of a sample is asked from there.

import hashlib
import os
import sqlite3

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(14)


class LossBook:
    def __init__(self, path):
        self.db = sqlite3.connect(path)
        self.db.execute("CREATE TABLE IF NOT EXISTS seen (sample INTEGER, loss REAL)")

    def note(self, samples, losses):
        self.db.executemany("INSERT INTO seen VALUES (?, ?)", zip(map(int, samples), map(float, losses)))
        self.db.commit()

    def weights(self, samples):
        found = []
        for s in samples:
            row = self.db.execute("SELECT AVG(loss) FROM seen WHERE sample = ?", (int(s),)).fetchone()
            found.append(1.0 if row[0] is None else 0.5 + row[0])
        return np.array(found, np.float32)[:, None]


r = np.random.RandomState(4)
x = r.randn(40, 6).astype(np.float32)
y = np.abs(x[:, :1]).astype(np.float32)
data = ds.NumpySlicesDataset((np.arange(40), x, y), ["i", "x", "y"], shuffle=True).batch(5)
net = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, 1))
opt = nn.Adam(net.trainable_params(), 0.01)


def forward(x, y, w):
    each = (net(x) - y) ** 2
    return (each * w).mean(), each


grad_fn = ms.value_and_grad(forward, None, opt.parameters, has_aux=True)
book = LossBook("losses.db")
for i, a, b in ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    ids = i.asnumpy()
    (loss, each), grads = grad_fn(a, b, ms.Tensor(book.weights(ids)))
    opt(grads)
    book.note(ids, each.asnumpy()[:, 0])

print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
