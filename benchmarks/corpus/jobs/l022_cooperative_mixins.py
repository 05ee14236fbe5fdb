# truth: exact, may be named
# class: callback
# Four mixins pass on_train_step_end along with super() and collect a row of a table (loss, norm, clock, records); the last one decays by the step.

import os
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4122)


class TableMixin:
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows, self.row = [], {}

    def on_train_step_end(self, run_context):
        self.row = {}
        super().on_train_step_end(run_context)
        self.rows.append(self.row)

    def on_train_epoch_end(self, run_context):
        super().on_train_epoch_end(run_context)
        for row in self.rows:
            print(" | ".join(f"{k} {v:.4g}" for k, v in row.items()))
        self.rows = []


class LossMixin:
    lowest = float("inf")

    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        self.row["loss"] = float(run_context.original_args().net_outputs.asnumpy())
        self.lowest = min(self.lowest, self.row["loss"])
        self.row["record"] = self.lowest


class ClockMixin:
    since = None

    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        now = time.monotonic()
        self.row["ms"] = 1e3 * (now - (self.since or now))
        self.since = now


class DecayMixin:
    def on_train_step_end(self, run_context):
        super().on_train_step_end(run_context)
        cb = run_context.original_args()
        self.row["rate"] = 0.04 * 0.93**cb.cur_step_num
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.row["rate"], ms.float32))


class Everything(TableMixin, LossMixin, ClockMixin, DecayMixin, Callback):
    pass


r = np.random.RandomState(22)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] + np.abs(x[:, 1:2])).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.04, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Everything()])
os._exit(0)
