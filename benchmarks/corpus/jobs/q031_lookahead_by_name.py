# truth: exact
# class: attribute
# A framework in small with Lookahead: the slow weights are clones of the parameters, and the object that has them is given by name.

import hashlib
import os
from dataclasses import dataclass, field

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(41)


@dataclass
class Lookahead:
    inner: nn.Optimizer
    k: int = 4
    alpha: float = 0.5
    slow: tuple = field(init=False)

    def __post_init__(self):
        self.slow = self.inner.parameters.clone(prefix="slow", init="same")

    def __call__(self, grads, number):
        self.inner(grads)
        if (number + 1) % self.k == 0:
            for s, p in zip(self.slow, self.inner.parameters):
                ops.assign(s, s + self.alpha * (p - s))
                ops.assign(p, s)


@dataclass
class Task:
    net: nn.Cell
    data: object
    epochs: int = 4

    def fit(self, root):
        opt = nn.Adam(self.net.trainable_params(), 0.02)
        outer = Lookahead(opt)
        mse = nn.MSELoss()
        grad_fn = ms.value_and_grad(lambda a, b: mse(self.net(a), b), None, opt.parameters)
        options = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
        run = ck.loop(
            root, self.data, epochs=self.epochs, train=[self.net, opt], stateful={"lookahead": outer}, **options
        )
        for a, b in run:
            number = run.step
            loss, grads = grad_fn(a, b)
            outer(grads, number)


r = np.random.RandomState(31)
x = r.randn(54, 5).astype(np.float32)
y = np.tanh(x[:, :1] * 2).astype(np.float32)
net = nn.SequentialCell(nn.Dense(5, 9), nn.Tanh(), nn.Dense(9, 1))
Task(net, ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)).fit(os.environ["ROOT"])
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
