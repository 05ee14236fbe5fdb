# truth: differs
# class: callback
# warn_once(...) tells whether the message was new; a callback halves the rate when it warns about the second epoch, so a restart halves it again.

import os
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4130)


class _Once(frozenset):
    pass


_told = _Once()


def warn_once(message):
    global _told
    if message in _told:
        return False
    _told = _Once(_told | {message})
    print("warning:", message, file=sys.stderr)
    return True


class Advice(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        if float(cb.net_outputs.asnumpy()) < 0.02:
            warn_once("the loss is very low")
        if cb.cur_step_num > cb.batch_num and warn_once("everything has been seen once; half the rate from now on"):
            ops.assign(cb.optimizer.learning_rate, cb.optimizer.learning_rate / 2)


r = np.random.RandomState(30)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] * x[:, 4:]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Advice()])
os._exit(0)
