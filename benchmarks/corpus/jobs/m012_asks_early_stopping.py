# truth: exact
# class: callback
# Model.fit with MindSpore's EarlyStopping; a second callback asks it how many epochs it has waited and lowers the rate accordingly. GRAPH mode.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import MAE, Callback, EarlyStopping

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4312)


class Cautious(Callback):
    def __init__(self, early, base):
        super().__init__()
        self.early, self.base = early, base
        self.table = []

    def on_train_epoch_end(self, run_context):
        cb = run_context.original_args()
        waited = int(self.early.wait)
        rate = self.base * 0.6**waited
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))
        self.table.append((cb.cur_epoch_num, waited, rate))

    def on_train_end(self, run_context):
        for epoch, waited, rate in self.table:
            print(f"{epoch:3} {waited:3} {rate:.5f}")


r = np.random.RandomState(12)
x = r.randn(40, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + 0.4 * r.randn(40, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x[:32], y[:32]), ["x", "y"], shuffle=True).batch(8)
valid = ds.NumpySlicesDataset((x[32:], y[32:]), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(4, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.15, 0.9)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mae": MAE()})
early = EarlyStopping(monitor="mae", patience=20, mode="min")
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 7, train, valid, callbacks=[early, Cautious(early, 0.15)])
os._exit(0)
