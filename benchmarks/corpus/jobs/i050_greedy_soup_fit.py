# truth: differs
# class: callback
# Model.fit with a greedy model soup: the ingredients that helped so far, a list of weights in the callback, are averaged into the network after each epoch.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import MAE, Callback, Model

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(350)


class GreedySoup(Callback):
    def __init__(self, net, x, y):
        super().__init__()
        self.net, self.x, self.y = net, ms.Tensor(x), ms.Tensor(y)
        self.ingredients = []

    def _weights(self):
        return [p.asnumpy().copy() for p in self.net.get_parameters()]

    def _put(self, weights):
        for p, w in zip(self.net.get_parameters(), weights):
            ops.assign(p, ms.Tensor(w))

    def _error(self):
        return float(((self.net(self.x) - self.y) ** 2).mean().asnumpy())

    def on_train_epoch_end(self, run_context):
        candidate = self._weights()
        alone = self._error()
        blend = [np.mean(ws, axis=0).astype(np.float32) for ws in zip(*self.ingredients, candidate)]
        self._put(blend)
        if not self.ingredients or self._error() < 4 * alone:
            self.ingredients.append(candidate)
        else:
            self._put(candidate)


r = np.random.RandomState(50)
x = r.randn(48, 4).astype(np.float32)
y = np.tanh(x[:, :1] - x[:, 1:2]).astype(np.float32)
train = ds.NumpySlicesDataset({"x": x[:32], "y": y[:32]}, shuffle=True).batch(4)
valid = ds.NumpySlicesDataset({"x": x[32:], "y": y[32:]}, shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.02), metrics={"mae": MAE()})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 3, train, valid, callbacks=[GreedySoup(net, x[32:], y[32:])])
os._exit(0)
