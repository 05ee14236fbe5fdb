# truth: exact
# class: attribute
# ReduceLROnPlateau written by hand inside a trainer class, per four batches; its numbers are attributes given by name, as the docs advise.

import os
from collections import deque

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(347)


class PlateauTrainer:
    def __init__(self, net, lr=0.1, factor=0.5, patience=1, every=4):
        self.net, self.factor, self.patience, self.every = net, factor, patience, every
        self.optimizer = nn.Momentum(net.trainable_params(), lr, 0.9)
        loss_fn = nn.MSELoss()
        self.grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
        self.best, self.wait, self.total, self.seen = float("inf"), 0, 0.0, 0
        self.recent = deque(maxlen=3)  # for the progress line

    def fit_batch(self, x, y):
        loss, grads = self.grad_fn(x, y)
        self.optimizer(grads)
        self.total += float(loss.asnumpy())
        self.seen += 1
        if self.seen == self.every:
            self._window_ended(self.total / self.seen)
            self.total, self.seen = 0.0, 0

    def _window_ended(self, mean):
        self.recent.append(mean)
        print("windows", [f"{v:.4f}" for v in self.recent])
        if mean < 0.99 * self.best:
            self.best, self.wait = mean, 0
            return
        self.wait += 1
        if self.wait > self.patience:
            lr = self.optimizer.learning_rate
            ops.assign(lr, ms.Tensor(float(lr.asnumpy()) * self.factor, ms.float32))
            self.wait = 0


r = np.random.RandomState(47)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] + 2 * r.randn(6, 1)).astype(np.float32))))
trainer = PlateauTrainer(nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1)), patience=0)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    plateau = ck.attributes(trainer, "best", "wait", "total", "seen")
    state = ck.StateManager([trainer.net, trainer.optimizer], batches, plateau=plateau)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        trainer.fit_batch(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
