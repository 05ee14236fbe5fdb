# truth: differs
# class: variable
# the loop is a functools.reduce over an immutable TrainState; the velocities in it are in no checkpoint

import functools
import os
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

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


class TrainState(NamedTuple):
    velocity: tuple
    step: int

    @classmethod
    def create(cls, params):
        return cls(tuple(ops.zeros_like(p) for p in params), 0)


net, criterion = MLP(), nn.MSELoss()
params = ParameterTuple(net.trainable_params())
grad_fn = ms.value_and_grad(lambda x, y: criterion(net(x), y), None, params)


def nesterov(train_state, grads, lr=0.03, mu=0.9):
    velocity = tuple(mu * v + g for v, g in zip(train_state.velocity, grads))
    for p, v, g in zip(params, velocity, grads):
        ops.assign(p, p - lr * (g + mu * v))
    return train_state._replace(velocity=velocity, step=train_state.step + 1)


def make_step(manager, state):
    def step(train_state, batch):
        loss, grads = grad_fn(*batch)
        train_state = nesterov(train_state, grads)
        manager.step(state)
        return train_state

    return step


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    last = functools.reduce(make_step(manager, state), batches, TrainState.create(params))
    manager.save_final(state)
print("steps", last.step)
os._exit(0)
