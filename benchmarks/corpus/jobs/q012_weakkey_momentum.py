# truth: differs
# class: attribute
# An optimizer of one's own keeps its velocities in a WeakKeyDictionary by layer.

import hashlib
import os
import weakref

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(22)


class LayerMomentum:
    def __init__(self, net, lr=0.05, beta=0.9):
        self.layers = [c for c in net.cells() if isinstance(c, nn.Dense)]
        self.params = [p for layer in self.layers for p in layer.trainable_params()]
        self.velocity = weakref.WeakKeyDictionary()
        self.lr, self.beta = lr, beta

    def step(self, grads):
        grads = iter(grads)
        for layer in self.layers:
            new = []
            old = self.velocity.get(layer)
            for k, p in enumerate(layer.trainable_params()):
                g = next(grads)
                v = g if old is None else self.beta * old[k] + g
                ops.assign_sub(p, self.lr * v)
                new.append(v)
            self.velocity[layer] = new


r = np.random.RandomState(12)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] ** 2).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(5, 9), nn.Tanh(), nn.Dense(9, 1))
opt = LayerMomentum(net)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, ms.ParameterTuple(opt.params))
for a, b in ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    loss, grads = grad_fn(a, b)
    opt.step(grads)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
