# truth: exact
# class: attribute
# Accumulation without a branch in GRAPH mode: sums and a counter are Parameters, and a mask of 0 or 1 decides whether SGD moves the weights.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3122)


class MaskedStep(nn.Cell):
    def __init__(self, network, rate, k):
        super().__init__()
        self.network = network
        self.weights = ParameterTuple(network.trainable_params())
        self.sums = self.weights.clone(prefix="acc", init="zeros")
        self.count = Parameter(Tensor(0, ms.int32), name="count", requires_grad=False)
        self.grad = ops.GradOperation(get_by_list=True)
        self.rate, self.k = rate, k

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y)
        n = self.count + 1
        go = ops.cast(ops.equal(n, self.k), ms.float32)
        for i in range(len(self.weights)):
            total = self.sums[i] + grads[i]
            ops.assign_sub(self.weights[i], total * (go * self.rate / self.k))
            ops.assign(self.sums[i], total * (1.0 - go))
        ops.assign(self.count, ops.cast(ops.cast(n, ms.float32) * (1.0 - go), ms.int32))
        return loss


r = np.random.RandomState(22)
x = r.randn(32, 4).astype(np.float32)
y = (x[:, :1] * x[:, 1:2]).astype(np.float32)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
cell = MaskedStep(nn.WithLossCell(net, nn.MSELoss()), 0.2, 4)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
os._exit(0)
