# truth: differs
# class: callback
# Temporary boosts of the rate: entering one pushes its undo onto a contextlib.ExitStack that a later step closes; the stack is lost.

import contextlib
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3105)


class Boosts(Callback):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt
        self.undo = contextlib.ExitStack()

    def _set(self, value):
        ops.assign(self.opt.learning_rate, ms.Tensor(value, ms.float32))

    @contextlib.contextmanager
    def boosted(self, factor):
        before = float(self.opt.learning_rate.asnumpy())
        self._set(before * factor)
        try:
            yield
        finally:
            self._set(before)

    def on_train_step_end(self, run_context):
        n = run_context.original_args().cur_step_num % 6
        if n == 2:
            self.undo.enter_context(self.boosted(3.0))
        elif n == 5:
            self.undo.close()


r = np.random.RandomState(5)
x = r.randn(32, 6).astype(np.float32)
y = (x[:, :1] - 0.5 * x[:, 1:2] ** 2).astype(np.float32)
net = nn.SequentialCell(nn.Dense(6, 6), nn.Tanh(), nn.Dense(6, 1))
opt = nn.SGD(net.trainable_params(), learning_rate=0.02)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, loss_fn=nn.MSELoss(), optimizer=opt),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[Boosts(opt)],
)
os._exit(0)
