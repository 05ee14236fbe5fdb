# truth: differs
# class: callback
# A Keras-like callback restarts the learning rate when the smoothed loss rises; its deque of losses is not stored.

import os
from collections import deque

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_seed(13)
ms.set_context(mode=ms.GRAPH_MODE)


class RestartOnRise(Callback):
    """学习率按步衰减，平滑损失上升时重新开始。"""

    def __init__(self, optimizer, base=0.05, window=6):
        super().__init__()
        self.optimizer = optimizer
        self.base = base
        self.recent = deque(maxlen=window)
        self.since = 0

    def on_train_step_end(self, run_context):
        cb = run_context.original_args()
        loss = float(cb.net_outputs.asnumpy())
        mean = sum(self.recent) / len(self.recent) if self.recent else float("inf")
        self.recent.append(loss)
        self.since = 0 if loss > 1.1 * mean else self.since + 1
        ops.assign(self.optimizer.learning_rate, ms.Tensor(self.base * 0.9**self.since, ms.float32))


def dataset():
    r = np.random.RandomState(2)
    x = r.randn(64, 1, 6, 6).astype(np.float32)
    y = (x.mean((1, 2, 3)) > 0).astype(np.int32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(8)


class ConvNet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="valid")
        self.relu = nn.ReLU()
        self.flat = nn.Flatten()
        self.out = nn.Dense(64, 2)

    def construct(self, x, y):
        return ops.cross_entropy(self.out(self.flat(self.relu(self.conv(x)))), y)


net = ConvNet()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.05, momentum=0.8)
model = ms.Model(ck.AccumulationTrainCell(net, opt, accumulation_steps=1))
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(model, 3, dataset(), callbacks=[RestartOnRise(opt)])
os._exit(0)
