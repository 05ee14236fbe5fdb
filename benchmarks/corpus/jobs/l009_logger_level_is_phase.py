# truth: differs
# class: callback
# A handler turns the logger down after nine lines; while the logger is still verbose, training counts as settling in and is careful.

import logging
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4109)

log = logging.getLogger("job.train")
log.setLevel(logging.INFO)


class TalkativeAtFirst(logging.StreamHandler):
    def __init__(self, lines):
        super().__init__()
        self.left = lines

    def emit(self, record):
        super().emit(record)
        self.left -= 1
        if self.left == 0:
            logging.getLogger(record.name).setLevel(logging.WARNING)


log.addHandler(TalkativeAtFirst(9))


class Settle(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        log.info("step %d loss %s", cb.cur_step_num, cb.net_outputs)
        settling = log.isEnabledFor(logging.INFO)
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(0.01 if settling else 0.03, ms.float32))


r = np.random.RandomState(9)
x = r.randn(48, 5).astype(np.float32)
y = np.tanh(x @ r.randn(5, 2)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Sigmoid(), nn.Dense(8, 2))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Settle()])
os._exit(0)
