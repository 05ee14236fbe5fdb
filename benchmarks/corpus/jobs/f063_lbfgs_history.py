# truth: differs
# class: attribute
# Stochastic L-BFGS: pairs (s, y) and the last point are in deques of a subclass of object with __call__, C style names.

import os
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(57)

M_HIST = 4
STEP = 0.3


def pack(tensors):
    return np.concatenate([t.asnumpy().ravel() for t in tensors]).astype(np.float64)


def unpack(vec, like):
    ofs = 0
    for p in like:
        n = p.size
        yield ms.Tensor(vec[ofs : ofs + n].reshape(p.shape), ms.float32)
        ofs += n


class lbfgs:
    def __init__(self, params):
        self.params = params
        self.s_hist = deque([], M_HIST)
        self.y_hist = deque([], M_HIST)
        self.prev_x = self.prev_g = None

    def direction(self, g):
        q, alpha = g.copy(), []
        for s, y in reversed(list(zip(self.s_hist, self.y_hist))):
            a = s @ q / (s @ y)
            alpha.append(a)
            q -= a * y
        if self.s_hist:
            s, y = self.s_hist[-1], self.y_hist[-1]
            q *= (s @ y) / (y @ y)
        for (s, y), a in zip(zip(self.s_hist, self.y_hist), reversed(alpha)):
            q += s * (a - y @ q / (s @ y))
        return q

    def __call__(self, grads):
        x, g = pack(self.params), pack(grads)
        if self.prev_x is not None:
            s, y = x - self.prev_x, g - self.prev_g + 0.1 * (x - self.prev_x)
            if s @ y > 1e-8:
                self.s_hist.append(s)
                self.y_hist.append(y)
        self.prev_x, self.prev_g = x, g
        d = self.direction(g)
        d *= min(1.0, 1.0 / (np.linalg.norm(d) + 1e-12))
        for p, v in zip(self.params, unpack(x - STEP * d, self.params)):
            ops.assign(p, v)


net = nn.SequentialCell(nn.Dense(5, 6), nn.Tanh(), nn.Dense(6, 1))
prm = net.trainable_params()
fn = ms.value_and_grad(lambda a, b: ops.square(net(a) - b).mean(), None, prm)
update = lbfgs(prm)
rnd = np.random.RandomState(57)
rows = [(ms.Tensor(x), ms.Tensor(x[:, :1] - x[:, 1:2])) for x in rnd.randn(8, 20, 5).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
mgr = ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait", window="off")
)
st = ck.StateManager(net, batches)
mgr.restore(st)
for a, b in batches:
    val, grads = fn(a, b)
    update(grads)
    mgr.step(st)
mgr.save_final(st)
mgr.close()
os._exit(0)
