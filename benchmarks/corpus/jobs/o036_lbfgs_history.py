# truth: differs
# class: attribute
# L-BFGS by hand: the last six differences of weights and gradients are in a deque of the optimizer object, which is no cell; a start begins with steepest descent.

import os
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3536)


class LBFGS:
    def __init__(self, params, rate, memory):
        self.params, self.rate = params, rate
        self.pairs = deque(maxlen=memory)
        self.last = None

    def flat(self, tensors):
        return np.concatenate([t.asnumpy().ravel() for t in tensors]).astype(np.float64)

    def direction(self, g):
        q, kept = g.copy(), []
        for s, y in reversed(self.pairs):
            a = s @ q / (y @ s)
            q -= a * y
            kept.append(a)
        if self.pairs:
            s, y = self.pairs[-1]
            q *= (s @ y) / (y @ y)
        for (s, y), a in zip(self.pairs, reversed(kept)):
            q += s * (a - y @ q / (y @ s))
        return -q

    def step(self, grads):
        w, g = self.flat(self.params), self.flat(grads)
        if self.last is not None:
            s, y = w - self.last[0], g - self.last[1]
            if s @ y > 1e-8:
                self.pairs.append((s, y))
        self.last = (w, g)
        move = self.direction(g)
        move *= min(1.0, 1.0 / np.linalg.norm(move))
        at = 0
        for p in self.params:
            size = int(np.prod(p.shape))
            part = (w + self.rate * move)[at : at + size].reshape(p.shape)
            ops.assign(p, ms.Tensor(part.astype(np.float32)))
            at += size


r = np.random.RandomState(36)
x = r.randn(40, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
half = [(ms.Tensor(x[i::2]), ms.Tensor(y[i::2])) for i in range(2)]
rows = half * 4
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
optimizer = LBFGS(net.trainable_params(), rate=0.3, memory=6)

batches = ck.data.resumable(rows, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        optimizer.step(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
