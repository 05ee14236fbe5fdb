# truth: differs
# class: random
# A noise budget is counted in Decimal, exactly to the cent: each batch spends by its size of gradient, and what is left sets the noise.

import decimal
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(44)
CENT = decimal.Decimal("0.01")


class Wallet:
    def __init__(self, amount):
        self.initial = self.left = decimal.Decimal(amount)

    def spend(self, value):
        with decimal.localcontext() as context:
            context.prec = 12
            price = decimal.Decimal(repr(float(value))).quantize(CENT, rounding=decimal.ROUND_UP)
            self.left = max(self.left - price, decimal.Decimal(0))

    @property
    def share(self):
        return float(self.left / self.initial)


r = np.random.RandomState(6)
X = r.randn(64, 9).astype(np.float32)
Y = (X[:, :1] - 2 * X[:, 4:5]).astype(np.float32)
rows = [(ms.Tensor(X[i : i + 8]), ms.Tensor(Y[i : i + 8])) for i in range(0, 64, 8)]

net = nn.SequentialCell(nn.Dense(9, 6), nn.Tanh(), nn.Dense(6, 1))
mse = nn.MSELoss()
opt = nn.SGD(net.trainable_params(), learning_rate=0.05)
grad_fn = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
wallet = Wallet("60.00")

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        norm = sum(float((g * g).sum().asnumpy()) for g in grads) ** 0.5
        wallet.spend(norm)
        factor = 0.2 + 0.8 * wallet.share
        opt(tuple(g * factor for g in grads))
        manager.step(state)
    print("left", wallet.left)
    manager.save_final(state)
os._exit(0)
