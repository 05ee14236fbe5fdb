# truth: differs
# class: attribute

import copy
import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(2)


class EMA:
    """Exponential moving average of the weights, for evaluation."""

    def __init__(self, model, decay=0.98):
        self.module = copy.deepcopy(model)
        self.decay, self.updates = decay, 0

    def update(self, model):
        self.updates += 1
        d = self.decay * (1 - math.exp(-self.updates / 10))
        for e, p in zip(self.module.get_parameters(), model.get_parameters()):
            e.set_data(d * e + (1 - d) * p)


rng = np.random.default_rng(4)
X = rng.normal(size=(96, 6)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int32)
train = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), nn.Dense(16, 2))
optimizer = nn.SGD(net.trainable_params(), 0.1, momentum=0.9)
ema = EMA(net)
cell = ck.AccumulationTrainCell(nn.WithLossCell(net, nn.CrossEntropyLoss()), optimizer, 2).set_train()


def evaluate(model):
    return float((model(Tensor(X)).asnumpy().argmax(1) == Y).mean())


run = ck.loop(
    ROOT, train, epochs=3, train=cell, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
)
for x, y in run:
    number = run.step
    cell(x, y)
    if cell.updated:
        ema.update(net)
    if number % 12 == 11:
        print("accuracy of the average", evaluate(ema.module))
os._exit(0)
