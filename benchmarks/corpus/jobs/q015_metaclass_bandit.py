# truth: differs
# class: attribute
# Augmentations register by a metaclass; the class objects count rewards and the best class is used next (UCB).

import hashlib
import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(25)


class Registry(type):
    classes = []

    def __init__(cls, name, bases, namespace):
        super().__init__(name, bases, namespace)
        cls.used, cls.reward = 0, 0.0
        if bases:
            Registry.classes.append(cls)

    def score(cls):
        if not cls.used:
            return math.inf
        total = sum(c.used for c in Registry.classes)
        return cls.reward / cls.used + 0.3 * math.sqrt(math.log(total) / cls.used)


class Augmentation(metaclass=Registry):
    def __call__(self, x):
        return x


class Flip(Augmentation):
    def __call__(self, x):
        return x[:, ::-1].copy()


class Scale(Augmentation):
    def __call__(self, x):
        return x * np.float32(1.3)


class Blank(Augmentation):
    def __call__(self, x):
        x = x.copy()
        x[:, :2] = 0
        return x


r = np.random.RandomState(15)
x = r.randn(48, 6).astype(np.float32)
y = (x[:, :3].sum(1, keepdims=True) > 0).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 10), nn.ReLU(), nn.Dense(10, 1), nn.Sigmoid())
opt = nn.Adam(net.trainable_params(), 0.02)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
batches = ck.data.resumable(data, epochs=5)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        kind = max(Registry.classes, key=lambda c: c.score())
        loss, grads = grad_fn(ms.Tensor(kind()(a.asnumpy())), b)
        opt(grads)
        kind.used += 1
        kind.reward += float(loss)
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
