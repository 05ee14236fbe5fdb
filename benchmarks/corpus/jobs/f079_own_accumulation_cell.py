# truth: exact
# class: iterator
# A hand-written accumulation cell: sums of gradients and micro_step are Parameters, and it has CycleAdapter's attributes.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, nn, ops

import ckptkit as ck

ms.set_seed(91)
ms.set_context(mode=ms.GRAPH_MODE)


class AccumulateStep(nn.Cell):
    def __init__(self, network, optimizer, k):
        super().__init__(auto_prefix=False)
        self.network = network.set_grad()
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.sums = self.weights.clone(prefix="sum", init="zeros")
        for s in self.sums:
            s.requires_grad = False
        self.micro_step = Parameter(ms.Tensor(0, ms.int32), name="micro_step", requires_grad=False)
        self.accumulation_steps = k
        self.grad = ops.GradOperation(get_by_list=True)
        self.hyper_map = ops.HyperMap()

    def construct(self, x, y):
        loss = self.network(x, y)
        grads = self.grad(self.network, self.weights)(x, y)
        for s, g in zip(self.sums, grads):
            ops.assign_add(s, g / self.accumulation_steps)
        ops.assign(self.micro_step, self.micro_step + 1)
        if self.micro_step >= self.accumulation_steps:
            self.optimizer(self.hyper_map(ops.partial(_copy), self.sums))
            for s in self.sums:
                ops.assign(s, ops.zeros_like(s))
            ops.assign(self.micro_step, ms.Tensor(0, ms.int32))
        return loss


_copy = ops.MultitypeFuncGraph("copy")


@_copy.register("Tensor")
def _copy_tensor(t):
    return t + 0.0


def data():
    r = np.random.RandomState(91)
    x = r.randn(63, 6).astype(np.float32)
    return ds.NumpySlicesDataset({"x": x, "y": x[:, :2] ** 2}, shuffle=True).batch(7)


net = nn.WithLossCell(nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 2)), nn.MSELoss())
step = AccumulateStep(net, nn.Momentum(net.trainable_params(), 0.05, 0.9), 4)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, data())
os._exit(0)
