# truth: exact
# class: attribute
# Differentiable plasticity: a Hebbian trace is a Parameter without gradient that construct moves; Model.train, PYNATIVE, K = 2.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.train import LossMonitor

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(91)


class PlasticDense(nn.Cell):
    """w + alpha * hebb, Miconi et al. 2018"""

    def __init__(self, n, m, eta=0.1):
        super().__init__()
        init = np.random.RandomState(2).randn(n, m).astype(np.float32) * 0.3
        self.w = Parameter(Tensor(init), name="w")
        self.alpha = Parameter(Tensor(np.full((n, m), 0.1, np.float32)), name="alpha")
        self.hebb = Parameter(Tensor(np.zeros((n, m), np.float32)), name="hebb", requires_grad=False)
        self.eta = eta

    def construct(self, x):
        trace = self.hebb * 1.0  # as it was before this batch
        y = ops.tanh(ops.matmul(x, self.w + self.alpha * trace))
        if self.training:
            outer = ops.matmul(ops.stop_gradient(x).T, ops.stop_gradient(y)) / x.shape[0]
            ops.assign(self.hebb, (1 - self.eta) * trace + self.eta * outer)
        return y


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.plastic = PlasticDense(6, 8)
        self.readout = nn.Dense(8, 2)

    def construct(self, x, label):
        return ops.cross_entropy(self.readout(self.plastic(x)), label)


def main():
    r = np.random.RandomState(0)
    x = r.randn(54, 6).astype(np.float32)
    label = (x[:, 0] > x[:, 5]).astype(np.int32)
    dataset = ds.NumpySlicesDataset((x, label), ["x", "label"], shuffle=True).batch(6)
    net = Net()
    cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), learning_rate=0.02), accumulation_steps=2)
    ckpt = ck.CheckpointCallback(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    )
    ckpt.train(ms.Model(cell), 3, dataset, callbacks=[LossMonitor(9)])


if __name__ == "__main__":
    main()
    os._exit(0)
