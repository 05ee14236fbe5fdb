# truth: exact, may be named
# class: callback
# A callback sets the rate at each step from the number of the step alone: warm-up, then cosine; it keeps the last rate for its messages. GRAPH mode.

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3538)


class WarmUpThenCosine(Callback):
    def __init__(self, peak, warm_up, total):
        super().__init__()
        self.peak, self.warm_up, self.total = peak, warm_up, total
        self.rate = 0.0

    def on_train_step_begin(self, run_context):
        cb = run_context.original_args()
        step = cb.cur_step_num
        if step <= self.warm_up:
            self.rate = self.peak * step / self.warm_up
        else:
            share = (step - self.warm_up) / (self.total - self.warm_up)
            self.rate = self.peak * (1 + math.cos(math.pi * share)) / 2
        ops.assign(cb.optimizer.learning_rate, ms.Tensor(self.rate, ms.float32))

    def on_train_epoch_end(self, run_context):
        print(f"epoch {run_context.original_args().cur_epoch_num}: rate {self.rate:.6f}")


r = np.random.RandomState(38)
label = r.randint(0, 3, 54).astype(np.int32)
image = (r.randn(54, 1, 8, 8) + label[:, None, None, None]).astype(np.float32)
train = ds.NumpySlicesDataset((image, label), ["image", "label"], shuffle=True).batch(6)
net = nn.SequentialCell(
    nn.Conv2d(1, 4, 3, stride=2, pad_mode="same"), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dense(64, 3)
)
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = ms.Model(net, loss, nn.Momentum(net.trainable_params(), 0.05, 0.9))

ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 4, train, callbacks=[WarmUpThenCosine(0.05, warm_up=6, total=4 * 9)])
os._exit(0)
