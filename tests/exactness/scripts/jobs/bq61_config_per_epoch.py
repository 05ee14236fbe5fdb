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


net = make_net()
opt = nn.Adam(net.trainable_params(), 0.01)
config = {"weight": 1.0, "sigma": 0.0}
grad_fn = ms.value_and_grad(lambda x, y, w: w * ops.mse_loss(net(x), y), None, opt.parameters)


def on_epoch_start(epoch):
    config["sigma"] = 0.1 * epoch
    config["weight"] = 1 / (1 + epoch)


data = pipeline()
per_epoch = data.get_dataset_size()
batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        epoch, within = divmod(number, per_epoch)
        if within == 0:
            on_epoch_start(epoch)
        x = x + Tensor(np.random.normal(0, config["sigma"], x.shape), ms.float32)
        loss, grads = grad_fn(x, y, config["weight"])
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
