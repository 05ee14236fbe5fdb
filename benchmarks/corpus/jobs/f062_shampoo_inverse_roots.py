# truth: differs
# class: closure
# Shampoo: statistics are Parameters and stored, but the inverse roots are cached and renewed only every eighth step.

import os

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn, ops

import ckptkit as ck

ms.set_seed(76)


class Shampoo(nn.Cell):
    def __init__(self, params, lr=0.1, refresh=8):
        super().__init__(auto_prefix=False)
        self.targets = list(params)
        self.lr, self.refresh = lr, refresh
        self.stats = ms.ParameterTuple(
            [
                Parameter(ms.Tensor(np.eye(n) * 1e-2, ms.float32), name=f"shampoo.{i}.{side}", requires_grad=False)
                for i, p in enumerate(self.targets)
                for side, n in zip("lr", self.matrix(p).shape)
            ]
        )
        self.steps = Parameter(ms.Tensor(0, ms.int32), name="shampoo.steps", requires_grad=False)
        self.roots = {}

    @staticmethod
    def matrix(p):
        a = p.asnumpy()
        return a if a.ndim == 2 else a.reshape(1, -1)

    @staticmethod
    def inverse_root(s):
        w, v = np.linalg.eigh(s.astype(np.float64))
        return (v * np.maximum(w, 1e-8) ** -0.25) @ v.T

    def update(self, grads):
        t = int(self.steps)
        for i, (p, g) in enumerate(zip(self.targets, grads)):
            m = self.matrix(g)
            left, right = self.stats[2 * i], self.stats[2 * i + 1]
            ops.assign(left, left + ms.Tensor(m @ m.T))
            ops.assign(right, right + ms.Tensor(m.T @ m))
            if t % self.refresh == 0 or i not in self.roots:
                self.roots[i] = [self.inverse_root(s.asnumpy()) for s in (left, right)]
            a, b = self.roots[i]
            ops.assign(p, p - self.lr * ms.Tensor((a @ m @ b).reshape(p.shape).astype(np.float32)))
        ops.assign(self.steps, self.steps + 1)


net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 2))
optimizer = Shampoo(net.trainable_params())
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

r = np.random.RandomState(76)
rows = [(ms.Tensor(x), ms.Tensor(np.sign(x[:, :2]) * x[:, 2:4])) for x in r.randn(8, 6, 6).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        _, grads = vg(x, y)
        optimizer.update(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
