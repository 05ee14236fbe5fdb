# truth: exact
# class: attribute

import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck

ROOT = os.environ["ROOT"]
ms.set_seed(33)
SCHEDULES = {}


def register(cls):
    SCHEDULES[cls.__name__.lower()] = cls
    return cls


class Schedule:
    def __init__(self, base, total):
        self.base, self.total, self.t = base, total, 0

    def step(self):
        value = self.value()
        self.t += 1
        return value

    def state_dict(self):
        return {"t": self.t}

    def load_state_dict(self, state):
        self.t = state["t"]


@register
class Cosine(Schedule):
    def value(self):
        return self.base * 0.5 * (1 + math.cos(math.pi * min(1, self.t / self.total)))


@register
class Linear(Schedule):
    def value(self):
        return self.base * max(0.0, 1 - self.t / self.total)


@register
class WarmPlateau(Schedule):
    def value(self):
        return self.base * min(1.0, (self.t + 1) / 10)


config = {"lr": ("cosine", 0.1), "weight_decay": ("linear", 1e-2), "noise": ("warmplateau", 0.05)}
TOTAL = 36
schedules = {name: SCHEDULES[kind](base, TOTAL) for name, (kind, base) in config.items()}
rng0 = np.random.default_rng(1)
X = rng0.normal(size=(96, 6)).astype(np.float32)
Y = (X[:, :1] - X[:, 2:3] ** 2).astype(np.float32)
dataset = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 1))
optimizer = nn.SGD(net.trainable_params(), 0.1, momentum=0.9)


def forward(x, y, decay):
    penalty = sum((p**2).sum() for p in net.trainable_params())
    return ops.mse_loss(net(x), y) + decay * penalty


grad_fn = ms.value_and_grad(forward, None, optimizer.parameters)
run = ck.loop(
    ROOT,
    dataset,
    epochs=3,
    train=[net, optimizer],
    stateful=schedules,
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for x, y in run:
    number = run.step
    now = {name: schedule.step() for name, schedule in schedules.items()}
    ops.assign(optimizer.learning_rate, Tensor(now["lr"], ms.float32))
    x = x + Tensor(np.random.normal(0, now["noise"], x.shape), ms.float32)
    loss, grads = grad_fn(x, y, Tensor(now["weight_decay"], ms.float32))
    optimizer(grads)
    if number % 12 == 0:
        print(number, float(loss), now)
os._exit(0)
