# differs, named
# a controller keeps the running gradient norm and sets the learning rate by it after each update
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


class NormController:
    """More rate where the gradients are small compared with what they were."""

    def __init__(self, optimizer, base, beta=0.8):
        self.optimizer, self.base, self.beta = optimizer, base, beta
        self._norm = None

    def __call__(self, norm):
        self._norm = norm if self._norm is None else self.beta * self._norm + (1 - self.beta) * norm
        rate = self.base * min(3.0, self._norm / (norm + 1e-6))
        ops.assign(self.optimizer.learning_rate, Tensor(rate, ms.float32))


network = nn.WithLossCell(MLP(), nn.MSELoss())
optimizer = nn.Momentum(network.trainable_params(), 0.03, 0.9)
cell = ck.AccumulationTrainCell(network, optimizer, 2, clip_norm=50.0).set_train()
controller = NormController(optimizer, 0.03)


def micro_step(manager, x, y):
    loss = cell(x, y)
    if cell.updated:
        norm = float(cell.gradient_norm.asnumpy())
        manager.fence()
        controller(norm)
    return loss


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        micro_step(manager, x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
