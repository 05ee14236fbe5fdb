# truth: differs
# class: outside
# Quantization-aware training in a functional style: activation ranges are moving averages in an observer per name.

import os
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(54)
ms.set_context(mode=ms.PYNATIVE_MODE)


class Range(NamedTuple):
    low: float
    high: float

    def toward(self, other, momentum=0.9):
        return Range(*(momentum * a + (1 - momentum) * b for a, b in zip(self, other)))


class Observers(dict):
    def __missing__(self, name):
        return None

    def see(self, name, t):
        now = Range(float(t.min()), float(t.max()))
        self[name] = now if self[name] is None else self[name].toward(now)
        return self[name]


observers = Observers()


def fake_quant(name, t, bits=4):
    low, high = observers.see(name, ops.stop_gradient(t))
    scale = (high - low) / (2**bits - 1) + 1e-8
    q = ops.round((ops.clamp(t, low, high) - low) / scale) * scale + low
    return t + ops.stop_gradient(q - t)


class QNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = nn.Dense(8, 12)
        self.b = nn.Dense(12, 2)

    def construct(self, x, y):
        h = ops.relu(self.a(x))
        return ((self.b(h) - y) ** 2).mean()


net = QNet()
params = net.trainable_params()
opt = nn.Adam(params, learning_rate=0.01)


def forward(x, y):
    x = fake_quant("input", x)
    h = fake_quant("hidden", ops.relu(net.a(x)))
    return ((net.b(h) - y) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, params)
g = np.random.RandomState(54)
rows = [(ms.Tensor(x), ms.Tensor(x[:, 2:4] + 1)) for x in (g.randn(8, 6, 8) * g.rand(8, 1, 1) * 3).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
