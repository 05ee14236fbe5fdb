# truth: differs
# class: closure
# a sorted list of all gradient norms, bound by functools.partial, gives the clipping threshold (AutoClip)

import bisect
import functools
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def global_norm(grads):
    return float(np.sqrt(sum(float((g.asnumpy() ** 2).sum()) for g in grads)))


def auto_clip(history, percentile, grads):
    norm = global_norm(grads)
    bisect.insort(history, norm)
    limit = history[int(percentile * (len(history) - 1))]
    factor = min(1.0, limit / max(norm, 1e-12))
    return tuple(g * factor for g in grads)


def compose(*fns):
    return functools.reduce(lambda f, g: lambda v: g(f(v)), fns)


def centralize(grads):
    return tuple(g - g.mean(1, keep_dims=True) if g.ndim > 1 else g for g in grads)


pipeline = compose(centralize, functools.partial(auto_clip, [], 0.3))
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = grad_fn(x, y)
        optimizer(pipeline(grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
