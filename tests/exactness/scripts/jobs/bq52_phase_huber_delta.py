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


def warm_up(net):
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: ops.mse_loss(net(x), y), None, opt.parameters)
    worst = 0.0
    batches = ck.data.resumable(pipeline(), 1)
    for _, (x, y) in ck.CheckpointManager(f"{ROOT}/warm", **SAVE).loop(ck.StateManager([net, opt], batches)):
        loss, grads = grad_fn(x, y)
        opt(grads)
        worst = max(worst, float(loss))
    return worst


net = make_net()
worst = warm_up(net)
delta = 0.2 + worst / 10
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.HuberLoss(delta=delta)), nn.Momentum(net.trainable_params(), 0.05, 0.9), 2
)
cell.set_train()
batches = ck.data.resumable(pipeline(seed=2), 3)
for _, (x, y) in ck.CheckpointManager(f"{ROOT}/main", **SAVE).loop(ck.StateManager(cell, batches)):
    cell(x, y)
os._exit(0)
