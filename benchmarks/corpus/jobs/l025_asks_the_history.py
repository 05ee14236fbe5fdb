# truth: differs
# class: attribute
# MindSpore's own History callback records the last loss of each epoch; a second callback asks it for the first and the last one and sets the rate.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback, History

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4125)


class Progress(Callback):
    """the rate falls with the loss, relative to the first epoch"""

    def __init__(self, history, rate):
        super().__init__()
        self.history, self.rate = history, rate

    @property
    def losses(self):
        return [float(value) for value in self.history.history["net_output"]]

    def on_train_epoch_end(self, run_context):
        cb = run_context.original_args()
        first, last = self.losses[0], self.losses[-1]
        rate = self.rate * min(1.5, last / first)
        print(f"after epoch {cb.cur_epoch_num}: rate {rate:.5f}")
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(rate, ms.float32))


r = np.random.RandomState(25)
x = r.randn(24, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(6)
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
model = ms.Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9))
history = History()
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 6, train, callbacks=[history, Progress(history, 0.03)])
os._exit(0)
