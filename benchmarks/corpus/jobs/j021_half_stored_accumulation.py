# truth: differs
# class: attribute
# Own accumulation over 4 micro-batches: the sums are Parameters and stored, how many micro-batches are in them is a plain int.

import os

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3121)


class AccumulatingStep(nn.Cell):
    def __init__(self, network, optimizer, every):
        super().__init__()
        self.network = network
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.sums = ParameterTuple(self.weights).clone(prefix="sum", init="zeros")
        self.grad = ms.value_and_grad(network, None, self.weights)
        self.every = every
        self.inside = 0

    def construct(self, x, y):
        loss, grads = self.grad(x, y)
        for s, g in zip(self.sums, grads):
            ops.assign_add(s, g)
        self.inside += 1
        if self.inside == self.every:
            self.optimizer(tuple(s / self.every for s in self.sums))
            for s in self.sums:
                ops.assign(s, ops.zeros_like(s))
            self.inside = 0
        return loss


r = np.random.RandomState(21)
rows = [(Tensor(v), Tensor(np.tanh(v[:, :1] * 2))) for v in r.randn(8, 5, 4).astype(np.float32)]
net = nn.SequentialCell(nn.Dense(4, 7), nn.Tanh(), nn.Dense(7, 1))
step = AccumulatingStep(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9), 4)
step.set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(step, batches)
    manager.restore(state)
    for x, y in batches:
        step(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
