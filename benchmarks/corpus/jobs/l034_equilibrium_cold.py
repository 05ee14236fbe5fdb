# truth: exact
# class: attribute
# A deep equilibrium layer: the fixed point is iterated from zero in each batch until a tolerance or ten rounds; the rounds are counted for a print.

import collections
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4134)


class Equilibrium(nn.Cell):
    def __init__(self, inputs, width):
        super().__init__()
        self.width = width
        self.inject = nn.Dense(inputs, width)
        self.mix = nn.Dense(width, width, has_bias=False)

    def construct(self, x, rounds):
        u = self.inject(x)
        z = ops.zeros((x.shape[0], self.width), ms.float32)
        for _ in range(rounds):
            z = ops.tanh(0.5 * self.mix(z) + u)
        return z


def rounds_needed(layer, x, tolerance=1e-3, most=10):
    """how many rounds this batch takes, measured without gradients in NumPy"""
    w, u = layer.mix.weight.asnumpy(), layer.inject(x).asnumpy()
    z = np.zeros_like(u)
    for n in range(1, most + 1):
        z, before = np.tanh(0.5 * z @ w.T + u), z
        if np.abs(z - before).max() < tolerance:
            return n
    return most


r = np.random.RandomState(34)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.abs(x[:, :1] - x[:, 1:2]).astype(np.float32))))
deq, head, mse = Equilibrium(4, 8), nn.Dense(8, 1), nn.MSELoss()
net = nn.CellList([deq, head])
opt = nn.Adam(net.trainable_params(), 0.01)
gradients = ms.value_and_grad(lambda x, y, n: mse(head(deq(x, n)), y), None, net.trainable_params())
histogram = collections.Counter()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        n = rounds_needed(deq, x)
        histogram[n] += 1
        loss, grads = gradients(x, y, n)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
    print("rounds:", dict(sorted(histogram.items())))
os._exit(0)
