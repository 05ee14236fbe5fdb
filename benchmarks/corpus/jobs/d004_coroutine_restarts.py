# truth: differs
# class: attribute
# a coroutine (generator with send) keeps the position and the length of the warm-restart cycle

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
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.02)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


def warm_restarts(base, length, mult):
    """Yields a rate, takes the loss of the step that used it."""
    position, rate = 0, base
    while True:
        loss = yield rate
        position += 1
        if position == length or loss > 5.0:
            position, length = 0, length * mult
        rate = 0.5 * base * (1 + math.cos(math.pi * position / length)) + 1e-4


def main():
    batches = ck.data.resumable(rows, epochs=3)
    schedule = warm_restarts(0.02, 4, 2)
    rate = next(schedule)
    with ck.CheckpointManager(ROOT, **SAVE) as manager:
        state = ck.StateManager([net, optimizer], batches)
        manager.restore(state)
        for x, y in batches:
            ops.assign(optimizer.learning_rate, Tensor(rate, ms.float32))
            loss = train_step(x, y)
            rate = schedule.send(float(loss.asnumpy()))
            manager.step(state)
        manager.save_final(state)


main()
os._exit(0)
