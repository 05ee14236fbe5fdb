# truth: exact
# class: attribute
# ReMixMatch's distribution alignment in GRAPH mode: running mean of predictions and ramp of the unlabeled loss are Parameters of the train cell.

import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Parameter, nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4357)
CLASSES = 3


class BothLosses(nn.Cell):
    def __init__(self, body):
        super().__init__(auto_prefix=False)
        self.body = body

    def construct(self, x, y, u, guess, ramp):
        labeled = ((ops.softmax(self.body(x), -1) - y) ** 2).sum(-1).mean()
        unlabeled = ((ops.softmax(self.body(u), -1) - guess) ** 2).sum(-1).mean()
        return labeled + ramp * unlabeled


class ReMixMatch(nn.Cell):
    def __init__(self, body, optimizer, prior):
        super().__init__(auto_prefix=False)
        self.body, self.losses, self.optimizer = body, BothLosses(body), optimizer
        self.weights = optimizer.parameters
        self.grad = ops.GradOperation(get_by_list=True)
        self.prior = ms.Tensor(prior, ms.float32)
        even = np.full(CLASSES, 1 / CLASSES, np.float32)
        self.running = Parameter(ms.Tensor(even), name="running_prediction", requires_grad=False)
        self.ramp = Parameter(ms.Tensor(0.0, ms.float32), name="unlabeled_ramp", requires_grad=False)

    def construct(self, x, y, u):
        predicted = ops.stop_gradient(ops.softmax(self.body(u), -1))
        running = 0.9 * self.running + 0.1 * predicted.mean(0)
        aligned = predicted * (self.prior / running)
        sharp = aligned * aligned
        guess = sharp / sharp.sum(-1, keepdims=True)
        ramp = self.ramp + 0.05
        loss = self.losses(x, y, u, guess, ramp)
        grads = self.grad(self.losses, self.weights)(x, y, u, guess, ramp)
        loss = ops.depend(loss, self.optimizer(grads))
        ops.assign(self.running, running)
        ops.assign(self.ramp, ramp)
        return loss


r = np.random.RandomState(57)
prior = np.array([0.5, 0.3, 0.2], np.float32)
centers = 2 * r.randn(CLASSES, 4)
label, hidden = r.choice(CLASSES, 48, p=[0.5, 0.3, 0.2]), r.choice(CLASSES, 48, p=[0.5, 0.3, 0.2])
x, u = ((centers[k] + r.randn(48, 4)).astype(np.float32) for k in (label, hidden))
data = ds.NumpySlicesDataset((x, np.eye(CLASSES, dtype=np.float32)[label], u), ["x", "y", "u"], shuffle=True).batch(6)
body = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, CLASSES))
step = ReMixMatch(body, nn.Momentum(body.trainable_params(), 0.1, 0.9), prior)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(step), 3, data)
os._exit(0)
