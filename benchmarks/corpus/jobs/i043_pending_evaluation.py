# truth: differs
# class: attribute
# An evaluation runs in an executor while the next batch trains; its result, a future that waits in an attribute, scales the step after it.

import os
from concurrent.futures import ThreadPoolExecutor

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(343)


def evaluate(weights, x, y):
    """NumPy only, on copies"""
    w1, b1, w2, b2 = weights
    return float(np.mean((np.tanh(x @ w1.T + b1) @ w2.T + b2 - y) ** 2))


class Evaluator:
    def __init__(self, net, x, y):
        self.net, self.x, self.y = net, x, y
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.pending = None

    def submit(self):
        weights = [p.asnumpy().copy() for p in self.net.get_parameters()]
        self.pending = self.pool.submit(evaluate, weights, self.x, self.y)

    def collect(self, default):
        return self.pending.result() if self.pending is not None else default


r = np.random.RandomState(43)
x_val = r.randn(20, 4).astype(np.float32)
y_val = np.sin(x_val[:, :1]).astype(np.float32)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.sin(x[:, :1]).astype(np.float32))))

net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
evaluator = Evaluator(net, x_val, y_val)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        scale = float(np.clip(evaluator.collect(default=1.0), 0.2, 2.0))
        loss, grads = vg(x, y)
        opt(tuple(g * scale for g in grads))
        evaluator.submit()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
