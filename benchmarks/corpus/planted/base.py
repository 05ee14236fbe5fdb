"""What the scripts beside it train; each gives the one thing that a resume loses."""

import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(5)

SIZE, BATCH = 10, 4


def rows():
    generator = np.random.default_rng(3)
    for _ in range(SIZE):
        x = generator.normal(size=(BATCH, 6)).astype(np.float32)
        yield ms.Tensor(x), ms.Tensor(x[:, :1] * 0.7 - x[:, 1:2])


def train(change, batches=None, epochs=3):
    """Train in a loop whose inputs ``change`` makes from those of the data."""
    net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
    loss_of, optimizer = nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.03, 0.9)
    gradients = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, optimizer.parameters)
    batches = ck.data.resumable(list(rows()) if batches is None else batches, epochs=epochs)
    with ck.CheckpointManager(os.environ["ROOT"]) as manager:
        state = ck.StateManager([net, optimizer], batches)
        manager.restore(state)
        for x, y in batches:
            _, grads = gradients(change(x), y)
            optimizer(grads)
            manager.step(state)
