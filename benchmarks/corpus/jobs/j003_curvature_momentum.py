# truth: differs
# class: attribute
# YellowFin in small: an attrs object in the callback tracks the extreme differences of losses, and the momentum is set from them.

import os

import attr
import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3103)


@attr.s(auto_attribs=True)
class CurvatureRange:
    low: float = 1.0
    high: float = 1.0
    previous: float = attr.ib(default=None, repr=False)

    def update(self, loss):
        if self.previous is not None:
            c = abs(loss - self.previous) + 1e-3
            self.low = 0.8 * self.low + 0.2 * min(self.low, c)
            self.high = 0.8 * self.high + 0.2 * max(self.high, c)
        self.previous = loss
        return self

    @property
    def momentum(self):
        ratio = (self.high / self.low) ** 0.5
        return min(0.95, ((ratio - 1) / (ratio + 1)) ** 2 + 0.3)


class MomentumTuner(Callback):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt
        self.range = CurvatureRange()

    def on_train_step_end(self, ctx):
        loss = float(ctx.original_args().net_outputs.asnumpy())
        ops.assign(self.opt.momentum, ms.Tensor(self.range.update(loss).momentum, ms.float32))


rng = np.random.default_rng(3)
x = rng.normal(size=(32, 4)).astype(np.float32)
y = np.abs(x).sum(1, keepdims=True).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(4)
net = nn.SequentialCell(nn.Dense(4, 9), nn.Tanh(), nn.Dense(9, 1))
opt = nn.Momentum(net.trainable_params(), learning_rate=0.03, momentum=0.5)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, data, callbacks=[MomentumTuner(opt)])
os._exit(0)
