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


ms.set_context(mode=ms.GRAPH_MODE)


def sync(q, target):
    ms.load_param_into_net(target, {"target" + p.name[1:]: p for p in q.get_parameters()})


q, target = make_net(), make_net()
q.update_parameters_name("q.")
target.update_parameters_name("target.")
opt = nn.Adam(q.trainable_params(), 0.01)


def forward(x, y):
    return ((q(x) - y - 0.9 * ops.stop_gradient(target(x))) ** 2).mean()


grad_fn = ms.value_and_grad(forward, None, opt.parameters)
batches = ck.data.resumable(pipeline(), epochs=3)
for number, (x, y) in ck.CheckpointManager(ROOT, **SAVE).loop(ck.StateManager([q, target, opt], batches)):
    if number % 6 == 0:
        sync(q, target)
    loss, grads = grad_fn(x, y)
    opt(grads)
os._exit(0)
