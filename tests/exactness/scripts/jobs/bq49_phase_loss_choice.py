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


def run(root, net, criterion, epochs, data):
    opt = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, opt.parameters)
    last = float("inf")
    for _, (x, y) in ck.CheckpointManager(root, **SAVE).loop(
        ck.StateManager([net, opt], ck.data.resumable(data, epochs))
    ):
        loss, grads = grad_fn(x, y)
        opt(grads)
        last = float(ops.mse_loss(net(x), y))
    return last


candidates = {"mse": nn.MSELoss(), "l1": nn.L1Loss(), "huber": nn.HuberLoss()}
scores = {}
for name, criterion in candidates.items():
    ms.set_seed(5)
    scores[name] = run(f"{ROOT}/search-{name}", make_net(), criterion, 1, pipeline())
best = min(scores, key=scores.get)
print(scores, best)
ms.set_seed(6)
run(f"{ROOT}/final", make_net(), candidates[best], 3, pipeline())
os._exit(0)
