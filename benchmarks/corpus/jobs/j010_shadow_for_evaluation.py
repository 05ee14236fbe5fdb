# truth: exact, may be named
# class: callback
# Averaged weights are swapped in for each evaluation of Model.fit and out again after it; nothing in training looks at them.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import MAE, Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3110)


class EvaluateAverage(Callback):
    def __init__(self, params, decay=0.9):
        super().__init__()
        self.params, self.decay = params, decay
        self.shadow = [p.asnumpy().copy() for p in params]
        self.own = None

    def on_train_step_end(self, run_context):
        for s, p in zip(self.shadow, self.params):
            s *= self.decay
            s += (1 - self.decay) * p.asnumpy()

    def on_eval_begin(self, run_context):
        self.own = [p.asnumpy().copy() for p in self.params]
        self._load(self.shadow)

    def on_eval_end(self, run_context):
        self._load(self.own)
        self.own = None

    def _load(self, values):
        for p, v in zip(self.params, values):
            ops.assign(p, ms.Tensor(v))


r = np.random.RandomState(10)
x = r.randn(40, 6).astype(np.float32)
y = np.sign(x[:, :1]) * x[:, 1:2]
train, valid = (
    ds.NumpySlicesDataset((x[a:b], y[a:b]), ["x", "y"], shuffle=False).batch(8) for a, b in ((0, 32), (32, 40))
)
net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.01)
model = ms.Model(net, nn.MSELoss(), opt, metrics={"mae": MAE()})
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.fit(model, 6, train, valid, callbacks=[EvaluateAverage(net.trainable_params())])
os._exit(0)
