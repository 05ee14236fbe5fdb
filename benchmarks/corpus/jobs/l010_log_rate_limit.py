# truth: exact, may be named
# class: callback
# A logging filter counts messages per template, lets every third one through and notes on the record how many it dropped. Training asks nobody.

import collections
import logging
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4110)


class EveryThird(logging.Filter):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def filter(self, record):
        self.seen[record.msg] += 1
        record.dropped = self.seen[record.msg] - 1 - (self.seen[record.msg] - 1) // 3
        return self.seen[record.msg] % 3 == 1


logging.basicConfig(format="%(message)s")
log = logging.getLogger("quiet")
log.setLevel(logging.INFO)
log.addFilter(EveryThird())


class Watch(Callback):
    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        log.info("loss %.4f", loss)
        if loss > 1:
            log.info("a high loss, %.4f, in step %d", loss, cb.cur_step_num)
        progress = cb.cur_step_num / 24
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(0.04 * (1 - progress) ** 2 + 1e-3, ms.float32))


r = np.random.RandomState(10)
x = r.randn(48, 5).astype(np.float32)
y = np.tanh(x @ r.randn(5, 2)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Sigmoid(), nn.Dense(8, 2))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.04, 0.9))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[Watch()])
os._exit(0)
