# truth: exact
# class: attribute
# the namespace with best loss, sums and history is only printed at the end of an epoch

import os
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
optimizer = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


stats = SimpleNamespace(total=0.0, n=0, best=float("inf"), best_step=-1, history=[])


def track(stats, value):
    stats.total += value
    stats.n += 1
    if value < stats.best:
        stats.best, stats.best_step = value, stats.n
    stats.history.append(value)


def summary(stats, epoch):
    mean = stats.total / max(stats.n, 1)
    print(f"epoch {epoch}: mean {mean:.4f} best {stats.best:.4f} at {stats.best_step}, last {stats.history[-3:]}")


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        track(stats, float(train_step(x, y).asnumpy()))
        if stats.n % 8 == 0:
            summary(stats, batches.epoch)
        manager.step(state)
    manager.save_final(state)
summary(stats, batches.epoch)
os._exit(0)
