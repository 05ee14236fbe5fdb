# truth: exact
# class: attribute
# Stochastic depth in GRAPH mode from a table of coins that a seed makes before training; the row is a count that is a Parameter.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3129)
DEPTH, STEPS = 3, 24


class Residuals(nn.Cell):
    def __init__(self):
        super().__init__()
        self.stem = nn.Dense(4, 6)
        self.blocks = nn.CellList([nn.Dense(6, 6) for _ in range(DEPTH)])
        self.head = nn.Dense(6, 1)
        self.mse = nn.MSELoss()

    def construct(self, x, y, coins):
        h = ops.tanh(self.stem(x))
        for i in range(DEPTH):
            h = h + coins[i] * ops.tanh(self.blocks[i](h))
        return self.mse(self.head(h), y)


class DepthStep(nn.Cell):
    def __init__(self, network, optimizer, table):
        super().__init__()
        self.network, self.optimizer = network, optimizer
        self.weights = ParameterTuple(network.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True)
        self.table = Tensor(table)
        self.row = Parameter(Tensor([0], ms.int32), name="row", requires_grad=False)

    def construct(self, x, y):
        coins = ops.gather(self.table, self.row % STEPS, 0)[0]
        loss = self.network(x, y, coins)
        grads = self.grad(self.network, self.weights)(x, y, coins)
        ops.assign_add(self.row, Tensor([1], ms.int32))
        return ops.depend(loss, self.optimizer(grads))


table = (np.random.default_rng(29).random((STEPS, DEPTH)) < 0.7).astype(np.float32)
r = np.random.RandomState(29)
x = r.randn(32, 4).astype(np.float32)
y = np.tanh(x.sum(1, keepdims=True)).astype(np.float32)
net = Residuals()
cell = DepthStep(net, nn.Momentum(net.trainable_params(), 0.05, 0.9), table)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, ds.NumpySlicesDataset((x, y), ["x", "y"]).batch(4))
os._exit(0)
