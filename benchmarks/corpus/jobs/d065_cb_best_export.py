# truth: exact, may be named
# class: callback
# the callback keeps a copy of the best weights and of their average; both are only written to a file at the end

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class BestKeeper(Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.best_loss, self.best_weights = float("inf"), {}
        self.average, self.n = {}, 0

    def on_train_step_end(self, run_context):
        cb_params = run_context.original_args()
        weights = {p.name: p.asnumpy().copy() for p in cb_params.optimizer.parameters}
        self.n += 1
        for name, value in weights.items():
            self.average[name] = self.average.get(name, 0.0) + (value - self.average.get(name, 0.0)) / self.n
        loss = float(cb_params.net_outputs.asnumpy())
        if loss < self.best_loss:
            self.best_loss, self.best_weights = loss, weights

    def on_train_end(self, run_context):
        np.savez(f"{self.path}.best.npz", **self.best_weights)
        np.savez(f"{self.path}.mean.npz", **self.average)
        print("best loss", self.best_loss)


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[BestKeeper(ROOT)])
os._exit(0)
