# truth: differs
# class: attribute
# ClipHook, built from a registry, keeps a deque of gradient norms whose median is the clipping limit

import os
import statistics
from collections import deque
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
HOOKS = {}


def register_hook(cls):
    HOOKS[cls.__name__] = cls
    return cls


class Hook:
    def after_backward(self, ctx): ...
    def after_step(self, ctx): ...


@register_hook
class ClipHook(Hook):
    def __init__(self, window, factor):
        self.norms, self.factor = deque(maxlen=window), factor

    def after_backward(self, ctx):
        norm = float(np.sqrt(sum((g.asnumpy() ** 2).sum() for g in ctx.grads)))
        if self.norms:
            limit = self.factor * statistics.median(self.norms)
            ctx.grads = tuple(g * min(1.0, limit / norm) for g in ctx.grads)
        self.norms.append(norm)


@register_hook
class PrintHook(Hook):
    def __init__(self, interval):
        self.interval, self.count = interval, 0

    def after_step(self, ctx):
        self.count += 1
        if self.count % self.interval == 0:
            print("loss", ctx.loss)


hooks = [
    HOOKS[c.pop("type")](**c)
    for c in (dict(type="ClipHook", window=16, factor=0.7), dict(type="PrintHook", interval=4))
]
grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        ctx = SimpleNamespace()
        ctx.loss, ctx.grads = grad_fn(x, y)
        for hook in hooks:
            hook.after_backward(ctx)
        optimizer(ctx.grads)
        for hook in hooks:
            hook.after_step(ctx)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
