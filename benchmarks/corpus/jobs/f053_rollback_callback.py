# truth: differs
# class: callback
# A callback keeps a copy of the best weights since the start and rolls back to it when an epoch's mean loss is not better.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train.callback import Callback

import ckptkit as ck

ms.set_seed(30)


class BestWeights(Callback):
    def __init__(self, blend=0.5):
        self.blend = blend
        self.best = None
        self.weights = {}
        self.losses = []

    def on_train_epoch_begin(self, run_context):
        self.losses.clear()

    def on_train_step_end(self, run_context):
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))

    def on_train_epoch_end(self, run_context):
        args = run_context.original_args()
        mean = float(np.mean(self.losses))
        params = args.train_network.optimizer.parameters
        if self.best is None or mean < 0.7 * self.best:
            self.best = mean
            self.weights = {p.name: p.asnumpy().copy() for p in params}
        else:
            for p in params:
                value = self.blend * p.asnumpy() + (1 - self.blend) * self.weights[p.name]
                ops.assign(p, ms.Tensor(value.astype(np.float32)))


x = np.random.RandomState(30).uniform(-1, 1, (48, 6)).astype(np.float32)
y = np.cos(3 * x[:, :2]).astype(np.float32)
train_set = ds.NumpySlicesDataset({"x": x, "y": y}, shuffle=True).batch(6)

net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 2))
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.2, 0.9), 1)
model = ms.Model(cell)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
point = ckpt.resume(model, train_set, epochs=4)
if not point.complete:
    model.train(4, train_set, callbacks=[BestWeights(), ckpt], initial_epoch=point.epoch)
os._exit(0)
