# truth: exact
# class: attribute
# the train cell counts its steps in a Parameter, from which it ramps the weight of a penalty, in GRAPH mode

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import Model

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)


class PenalisedLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x, y, weight):
        out = self.network(x)
        return ((out - y) ** 2).mean() + weight * ops.abs(out).mean()


class RampedTrainCell(nn.Cell):
    def __init__(self, network, optimizer, ramp):
        super().__init__(auto_prefix=False)
        self.loss, self.optimizer, self.ramp = PenalisedLoss(network), optimizer, float(ramp)
        self.steps = Parameter(Tensor(0.0, ms.float32), name="ramp.steps", requires_grad=False)
        self.grad_fn = ms.value_and_grad(self.loss, None, optimizer.parameters)

    def construct(self, x, y):
        weight = ops.minimum(self.steps / self.ramp, 1.0)
        loss, grads = self.grad_fn(x, y, weight)
        self.optimizer(grads)
        ops.assign_add(self.steps, Tensor(1.0, ms.float32))
        return loss


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
cell = RampedTrainCell(net, nn.Momentum(net.trainable_params(), 0.02, 0.9), 12)
ck.CheckpointCallback(ROOT, **SAVE).train(Model(cell), 3, data)
os._exit(0)
