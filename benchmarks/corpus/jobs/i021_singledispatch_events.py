# truth: differs
# class: closure
# Training events are dataclasses handled by functools.singledispatch; the handler of BackwardDone keeps an EMA of gradient norms to rescale spikes.

import functools
import os
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(321)


@dataclass
class Event:
    step: int


@dataclass
class BatchLoaded(Event):
    x: np.ndarray


@dataclass
class BackwardDone(Event):
    grads: tuple
    factor: float = 1.0


@functools.singledispatch
def handle(event):
    raise NotImplementedError(type(event))


@handle.register
def _(event: BatchLoaded):
    event.x = event.x - event.x.mean(0)


@handle.register
def on_backward(event: BackwardDone):
    norm = float(np.sqrt(sum(float((g * g).sum().asnumpy()) for g in event.grads)))
    memory = on_backward.__dict__.setdefault("memory", {"norm": norm})
    event.factor = min(1.0, memory["norm"] / (norm + 1e-9))
    memory["norm"] = 0.9 * memory["norm"] + 0.1 * norm


def emit(event):
    handle(event)
    return event


net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(90)
rows = []
for k in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, (x[:, :1] * (3 if k % 3 == 0 else 1)).astype(np.float32)))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        x = emit(BatchLoaded(step, x)).x
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        factor = emit(BackwardDone(step, grads)).factor
        opt(tuple(g * factor for g in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
