# truth: exact
# class: outside
# A reader of one's own shuffles its list in place at each epoch; labels are cached weakly, options come from os.environ.

import hashlib
import os
import random
import weakref

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(70)


class OneHot:
    def __init__(self, label, classes):
        self.array = np.eye(classes, dtype=np.float32)[label]


class Reader:
    def __init__(self, samples, size, classes, seed):
        self.samples, self.size, self.classes = list(samples), size, classes
        self.random = random.Random(seed)
        self.cache = weakref.WeakValueDictionary()

    @property
    def steps(self):
        return len(self.samples) // self.size

    def __len__(self):
        return self.steps

    def onehot(self, label):
        found = self.cache.get(label)
        if found is None:
            found = self.cache[label] = OneHot(label, self.classes)
        return found

    def __iter__(self):
        self.random.shuffle(self.samples)
        for k in range(self.steps):
            part = self.samples[k * self.size : (k + 1) * self.size]
            targets = [self.onehot(label) for _, label in part]
            yield np.stack([v for v, _ in part]), np.stack([t.array for t in targets])


epochs = int(os.environ.get("EPOCHS", "4"))
rate = float(os.environ.get("RATE", "0.02"))
r = np.random.RandomState(60)
labels = sorted(int(v) for v in r.randint(0, 3, 54))
samples = [((r.randn(5) + label).astype(np.float32), label) for label in labels]
reader = Reader(samples, 6, 3, seed=7)
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 3))
opt = nn.Adam(net.trainable_params(), rate)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
for a, b in ck.loop(
    os.environ["ROOT"],
    reader,
    epochs=epochs,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(ms.Tensor(a), ms.Tensor(b))
    opt(grads)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
