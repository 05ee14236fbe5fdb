# truth: exact
# class: random
# student and teacher are both in the list of cells; the ramp of the consistency weight comes from the position

import math
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))


class MLP(nn.Cell):
    def __init__(self, dim=8, hidden=12, out=1):
        super().__init__()
        self.fc1 = nn.Dense(dim, hidden)
        self.fc2 = nn.Dense(hidden, out)

    def construct(self, x):
        return self.fc2(ops.tanh(self.fc1(x)))


def sigmoid_rampup(step, length):
    phase = 1.0 - min(step, length) / length
    return math.exp(-5.0 * phase * phase)


student, teacher = MLP(), MLP()
teacher.update_parameters_name("teacher.")
for s, t in zip(student.get_parameters(), teacher.get_parameters()):
    ops.assign(t, s.value().copy())
optimizer = nn.Adam(student.trainable_params(), 0.02)


def forward_fn(x, y, targets, weight):
    out = student(x)
    return ((out - y) ** 2).mean() + weight * ((out - targets) ** 2).mean()


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([student, teacher, optimizer], batches)
    point = manager.restore(state)
    for step, (x, y) in enumerate(batches, point.batches_delivered):
        targets = ops.stop_gradient(teacher(x))
        loss, grads = grad_fn(x, y, targets, sigmoid_rampup(step, 16))
        optimizer(grads)
        for s, t in zip(student.get_parameters(), teacher.get_parameters()):
            ops.assign(t, 0.9 * t + 0.1 * s)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
