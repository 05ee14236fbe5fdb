# truth: differs
# class: callback
# A deque of parameters is rotated whenever the loss has risen; the parameter in front is shrunk after each step.

import os
from collections import deque

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3109)


class ShrinkTheFirst(Callback):
    def __init__(self, *params):
        super().__init__()
        self.turn = deque(params)

    def on_train_step_end(self, run_context):
        loss = run_context.original_args().net_outputs.asnumpy()
        front = self.turn[0]
        ops.assign(front, front * 0.9)
        self.turn.rotate(-1 if loss > 0.2 else -2)


r = np.random.RandomState(9)
x = r.randn(32, 4).astype(np.float32)
y = (2 * np.sin(x[:, :1] + x[:, 1:2])).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 5), nn.Tanh(), nn.Dense(5, 5), nn.Tanh(), nn.Dense(5, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(
    ms.Model(net, nn.MSELoss(), opt),
    3,
    ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4),
    callbacks=[ShrinkTheFirst(*net.trainable_params())],
)
os._exit(0)
