# truth: differs
# class: callback
# Jobs for later (cool down, warm up) are events of the standard library's sched with a virtual clock that the steps move on.

import os
import sched

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3116)


class Agenda(Callback):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt
        self.step = 0
        self.calendar = sched.scheduler(timefunc=lambda: self.step, delayfunc=lambda _: None)
        self.calendar.enter(3, 1, self.cool_down, (0.5,))

    def _times(self, factor):
        ops.assign(self.opt.learning_rate, self.opt.learning_rate * factor)

    def cool_down(self, factor):
        self._times(factor)
        self.calendar.enter(4, 1, self.warm_up, (1 / factor,))

    def warm_up(self, factor):
        self._times(factor)
        self.calendar.enter(2, 1, self.cool_down, (1 / factor,))

    def on_train_step_end(self, run_context):
        self.step = run_context.original_args().cur_step_num
        self.calendar.run(blocking=False)


r = np.random.RandomState(16)
x = r.randn(32, 3).astype(np.float32)
y = np.cos(x.sum(1, keepdims=True)).astype(np.float32)
net = nn.SequentialCell(nn.Dense(3, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.Momentum(net.trainable_params(), 0.06, 0.7)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4), callbacks=[Agenda(opt)]
)
os._exit(0)
