# truth: differs
# class: attribute
# RAdam-like, a subclass of AdamWeightDecay: it rectifies the gradients by the variance term of step t, and t is an int attribute.

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3127)


class Rectified(nn.AdamWeightDecay):
    beta2_of_variance = 0.95

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.t = 0

    def rectification(self):
        b = self.beta2_of_variance
        inf = 2 / (1 - b) - 1
        rho = inf - 2 * self.t * b**self.t / (1 - b**self.t)
        if rho <= 4:
            return 0.3
        return math.sqrt((rho - 4) * (rho - 2) * inf / ((inf - 4) * (inf - 2) * rho))

    def construct(self, gradients):
        self.t += 1
        c = self.rectification()
        return super().construct(tuple(g * c for g in gradients))


r = np.random.RandomState(27)
x = r.randn(32, 4).astype(np.float32)
y = (np.sin(x[:, :1]) * 2).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 6), nn.ReLU(), nn.Dense(6, 1))
opt = Rectified(net.trainable_params(), learning_rate=0.02, weight_decay=0.01)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(net, nn.MSELoss(), opt), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
os._exit(0)
