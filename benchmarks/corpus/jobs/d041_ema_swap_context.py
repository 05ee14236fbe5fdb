# truth: exact
# class: attribute
# averaged weights (a stored cell) are swapped in for a validation and the own weights are put back

import contextlib
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

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
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class Averaged(nn.Cell):
    def __init__(self, params):
        super().__init__()
        self.shadow = params.clone(prefix="ema", init="same")

    def update(self, params, decay=0.8):
        for s, p in zip(self.shadow, params):
            ops.assign(s, decay * s + (1 - decay) * p)


@contextlib.contextmanager
def averaged_weights(ema, params):
    backup = [p.value().copy() for p in params]
    for p, s in zip(params, ema.shadow):
        ops.assign(p, s.value().copy())
    try:
        yield
    finally:
        for p, b in zip(params, backup):
            ops.assign(p, b)


def validate():
    return sum(float(loss_fn(net(x), y).asnumpy()) for x, y in rows) / len(rows)


ema, params = Averaged(optimizer.parameters), optimizer.parameters
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer, ema], batches)
    point = manager.restore(state)
    best = float("inf")
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        train_step(x, y)
        ema.update(params)
        if step % 4 == 0:
            with averaged_weights(ema, params):
                best = min(best, validate())
            print("best validation", best)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
