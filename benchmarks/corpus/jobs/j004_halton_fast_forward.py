# truth: exact
# class: callback
# Weights are nudged along a Halton sequence; the engine is made anew in each step and put forward to the step's number.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback
from scipy.stats import qmc

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3104)


class QuasiRandomNudge(Callback):
    """a low-discrepancy kick on the first layer"""

    def __init__(self, weight, size):
        super().__init__()
        self.weight = weight
        self.size = size
        self.discrepancies = []

    def point(self, n):
        engine = qmc.Halton(d=int(np.prod(self.weight.shape)), scramble=False)
        engine.fast_forward(n)
        return engine.random(1)[0]

    def on_train_step_end(self, run_context):
        p = run_context.original_args()
        kick = (self.point(p.cur_step_num).reshape(self.weight.shape) - 0.5) * self.size
        ops.assign_add(self.weight, ms.Tensor(kick.astype(np.float32)))
        self.discrepancies.append(float(np.abs(kick).mean()))

    def on_train_epoch_end(self, run_context):
        print("kicks", len(self.discrepancies), np.mean(self.discrepancies))
        self.discrepancies.clear()


r = np.random.RandomState(4)
x = r.rand(32, 3).astype(np.float32)
y = np.cos(4 * x.sum(1, keepdims=True)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(3, 4), nn.Tanh(), nn.Dense(4, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), accumulation_steps=2
)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(cell),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[QuasiRandomNudge(net[0].weight, 0.05)],
)
os._exit(0)
