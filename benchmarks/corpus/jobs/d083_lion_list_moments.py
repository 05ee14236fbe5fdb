# truth: differs
# class: attribute
# an optimizer of one's own keeps the moments in a list of plain tensors

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class Lion(nn.Optimizer):
    def __init__(self, params, learning_rate=1e-2, beta1=0.9, beta2=0.95):
        super().__init__(learning_rate, params)
        self.beta1, self.beta2 = beta1, beta2
        self.exp_avg = [Tensor(np.zeros(p.shape, np.float32)) for p in self.parameters]

    def construct(self, gradients):
        lr = self.get_lr()
        for i, (p, g) in enumerate(zip(self.parameters, gradients)):
            m = self.exp_avg[i]
            update = ops.tanh(20.0 * (self.beta1 * m + (1 - self.beta1) * g))
            ops.assign(p, p - lr * update)
            self.exp_avg[i] = self.beta2 * m + (1 - self.beta2) * g
        return True


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
model = Model(net, nn.MSELoss(), Lion(net.trainable_params()))
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
