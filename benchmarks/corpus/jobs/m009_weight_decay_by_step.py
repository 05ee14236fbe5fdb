# truth: differs
# class: callback
# A callback sets the optimizer's weight_decay by the step and remembers nothing; but the optimizer is compiled, also in PYNATIVE, with the first value it saw.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4309)


class WeightDecaySchedule(Callback):
    """from strong to weak, as the step says"""

    def __init__(self, first, last, steps):
        super().__init__()
        self.first, self.last, self.steps = first, last, steps

    def on_train_step_begin(self, run_context):
        cb = run_context.original_args()
        share = min(1.0, cb.cur_step_num / self.steps)
        value = self.first + (self.last - self.first) * share
        cb.optimizer.weight_decay = ms.Tensor(value, ms.float32)


r = np.random.RandomState(9)
x = r.randn(48, 6).astype(np.float32)
y = (x[:, :1] + 0.3 * r.randn(48, 1)).astype(np.float32)
train = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9, weight_decay=0.2)
model = ms.Model(net, nn.MSELoss(), opt)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, train, callbacks=[WeightDecaySchedule(0.2, 0.01, 24)])
os._exit(0)
