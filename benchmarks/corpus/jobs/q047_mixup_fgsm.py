# truth: exact
# class: global
# Mixup by NumPy's global generator, then an FGSM step on the inputs, then the update on both.

import hashlib
import os
import random

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(57)
random.seed(57)


def mixup(a, b, alpha=0.4):
    lam = np.float32(np.random.beta(alpha, alpha))
    order = np.random.permutation(len(a))
    return lam * a + (1 - lam) * a[order], lam * b + (1 - lam) * b[order]


r = np.random.RandomState(47)
x = r.randn(56, 6).astype(np.float32)
y = np.tanh(x[:, :1] * x[:, 1:2]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(7)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
mse = nn.MSELoss()


def forward(a, b):
    return mse(net(a), b)


input_grad = ms.grad(forward, 0)
weight_grad = ms.value_and_grad(forward, None, opt.parameters)
for a, b in ck.loop(
    os.environ["ROOT"],
    data,
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
):
    mixed, target = mixup(a.asnumpy(), b.asnumpy())
    mixed, target = ms.Tensor(mixed), ms.Tensor(target)
    if random.random() < 0.5:
        mixed = mixed + 0.1 * ops.sign(input_grad(mixed, target))
    loss, grads = weight_grad(mixed, target)
    opt(grads)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
