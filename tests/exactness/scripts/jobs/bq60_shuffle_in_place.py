# differs, named
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_seed(3)


def make_data(n=96, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] + 0.2 * rng.normal(size=(n, 1))).astype(np.float32)
    return x, y


def pipeline(n=96, seed=1):
    return ds.NumpySlicesDataset(make_data(n, seed), ["x", "y"], shuffle=True).batch(8)


def make_net():
    return nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))


X, Y = make_data()
net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
indices = np.arange(len(X))
BATCH, PER_EPOCH = 8, len(X) // 8
ticks = ck.data.resumable(range(3 * PER_EPOCH), epochs=1)
for number, _ in ck.CheckpointManager(ROOT, **SAVE).loop(ck.StateManager([net, opt], ticks)):
    at = number % PER_EPOCH
    if at == 0:
        np.random.shuffle(indices)
    rows = indices[at * BATCH : (at + 1) * BATCH]
    loss, grads = grad_fn(Tensor(X[rows]), Tensor(Y[rows]))
    opt(grads)
os._exit(0)
