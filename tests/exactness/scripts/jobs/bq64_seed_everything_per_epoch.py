# exact, silent
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


net = make_net()
opt = nn.SGD(net.trainable_params(), 0.05)
grad_fn = ms.value_and_grad(
    lambda x, y: ops.mse_loss(net(x + 0.1 * ops.standard_normal(x.shape)), y), None, opt.parameters
)


def seed_everything(seed):
    np.random.seed(seed)
    ms.set_seed(seed)


data = pipeline()
per_epoch = data.get_dataset_size()
batches = ck.data.resumable(data, epochs=3)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(ck.StateManager([net, opt], batches)):
    if number % per_epoch == 0:
        seed_everything(number // per_epoch)
    x = x * Tensor(np.random.uniform(0.9, 1.1, x.shape), ms.float32)
    loss, grads = grad_fn(x, y)
    opt(grads)
os._exit(0)
