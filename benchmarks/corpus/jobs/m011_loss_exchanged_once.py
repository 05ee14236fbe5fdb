# truth: differs
# class: callback
# The callback exchanges the loss function of the network, once and for good, when a loss has risen for the first time; a start begins with the first one.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4311)


class Fit(nn.Cell):
    def __init__(self, body, loss):
        super().__init__()
        self.body, self.loss = body, loss

    def construct(self, x, y):
        return self.loss(self.body(x), y)


class Robust(Callback):
    """squares are good for the beginning; absolute errors do not mind outliers"""

    def __init__(self, fit):
        super().__init__()
        self.fit = fit
        self.before = None

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        if isinstance(self.fit.loss, nn.MSELoss) and self.before is not None and loss > self.before:
            print(f"step {cb.cur_step_num}: absolute errors from now on")
            self.fit.loss = nn.L1Loss()
        self.before = loss


r = np.random.RandomState(11)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] + x[:, 1:2] + 3 * (r.rand(48, 1) < 0.1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
fit = Fit(nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1)), nn.MSELoss())
cell = ck.AccumulationTrainCell(fit, nn.Momentum(fit.trainable_params(), 0.05, 0.8), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, train, callbacks=[Robust(fit)])
os._exit(0)
