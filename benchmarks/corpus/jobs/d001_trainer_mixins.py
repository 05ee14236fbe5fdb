# truth: differs
# class: attribute
# PlateauMixin keeps best, bad and factor as plain attributes of the trainer; the learning rate is computed from factor

import math
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


class PlateauMixin:
    patience, shrink = 2, 0.7

    def reset_plateau(self):
        self.best, self.bad, self.factor = math.inf, 0, 1.0

    def report(self, value):
        if value < 0.8 * self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad >= self.patience:
            self.factor, self.bad = self.factor * self.shrink, 0


class LogMixin:
    verbose = True

    def log(self, **values):
        if self.verbose:
            print(" ".join(f"{k}={v:.4g}" for k, v in values.items()))


class Trainer(PlateauMixin, LogMixin):
    def __init__(self, network, loss_fn, base_lr):
        self.network, self.loss_fn, self.base_lr = network, loss_fn, base_lr
        self.optimizer = nn.Momentum(network.trainable_params(), base_lr, 0.9)
        self.grad_fn = ms.value_and_grad(self.forward, None, self.optimizer.parameters)
        self.reset_plateau()

    def forward(self, x, y):
        return self.loss_fn(self.network(x), y)

    def train_one(self, x, y):
        loss, grads = self.grad_fn(x, y)
        ops.assign(self.optimizer.learning_rate, Tensor(self.base_lr * self.factor, ms.float32))
        self.optimizer(grads)
        self.report(float(loss.asnumpy()))
        self.log(loss=float(loss.asnumpy()), lr=self.base_lr * self.factor)

    def fit(self, root, rows, epochs):
        batches = ck.data.resumable(rows, epochs=epochs)
        with ck.CheckpointManager(root, **SAVE) as manager:
            state = ck.StateManager([self.network, self.optimizer], batches)
            manager.restore(state)
            for x, y in batches:
                self.train_one(x, y)
                manager.step(state)
            manager.save_final(state)


Trainer(nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1)), nn.MSELoss(), 0.02).fit(ROOT, rows, 3)
os._exit(0)
