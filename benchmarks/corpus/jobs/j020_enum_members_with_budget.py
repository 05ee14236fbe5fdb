# truth: differs
# class: iterator
# The members of an Enum have a budget that is spent by the losses; when it is used up, the next member takes over.

import enum
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3120)


class Regime(enum.Enum):
    EXPLORE = (0.08, 4.0)
    REFINE = (0.03, 3.0)
    POLISH = (0.01, 1e9)

    def __init__(self, rate, budget):
        self.rate = rate
        self.budget = budget

    def spend(self, amount):
        self.budget -= amount
        return self.budget <= 0

    @classmethod
    def active(cls):
        return next(m for m in cls if m.budget > 0)


class ByRegime(Callback):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt

    def on_train_step_end(self, run_context):
        regime = Regime.active()
        if regime.spend(min(1.0, float(run_context.original_args().net_outputs.asnumpy()))):
            print("next regime:", Regime.active().name)
        ops.assign(self.opt.learning_rate, ms.Tensor(Regime.active().rate, ms.float32))


r = np.random.RandomState(20)
x = r.randn(32, 4).astype(np.float32)
y = (x[:, :1] * 3 + r.randn(32, 1)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1))
opt = nn.Momentum(net.trainable_params(), 0.08, 0.5)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4), callbacks=[ByRegime(opt)]
)
os._exit(0)
