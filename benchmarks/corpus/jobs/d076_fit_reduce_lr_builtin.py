# truth: exact
# class: callback
# MindSpore's own ReduceLROnPlateau, which resumes where it was, and a callback that only reads the history

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

import ckptkit as ck

from mindspore.train import ReduceLROnPlateau

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)

valid = ds.NumpySlicesDataset((X[:16] + 0.1, Y[:16]), ["x", "y"], shuffle=False).batch(8)


class EvaluationTable(Callback):
    def __init__(self):
        super().__init__()
        self.rows = []

    def on_train_epoch_end(self, run_context):
        cb_params = run_context.original_args()
        self.rows.append((cb_params.cur_epoch_num, dict(cb_params.eval_results)))
        epoch, values = self.rows[-1]
        print(epoch, " ".join(f"{k}={float(v):.4f}" for k, v in values.items()))


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9), metrics={"mae"})
reduce_lr = ReduceLROnPlateau(monitor="eval_loss", factor=0.5, patience=1, min_delta=0.2)
ck.CheckpointCallback(ROOT, **SAVE).fit(model, 3, data, valid, callbacks=[reduce_lr, EvaluationTable()])
os._exit(0)
