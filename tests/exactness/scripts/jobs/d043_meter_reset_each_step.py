# exact, quiet
# the meter decides about the second pass over a batch, but is reset at the beginning of each step
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
optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.n, self.worst = 0.0, 0, 0.0

    def update(self, value):
        self.sum += value
        self.n += 1
        self.worst = max(self.worst, value)

    @property
    def avg(self):
        return self.sum / self.n


class TwoPassTrainer:
    parts, meter, worst_part = 4, Meter(), None

    def __call__(self, x, y):
        self.meter.reset()
        self.worst_part = None
        for px, py in zip(ops.split(x, 8 // self.parts), ops.split(y, 8 // self.parts)):
            value = float(loss_fn(net(px), py).asnumpy())
            if value >= self.meter.worst:
                self.worst_part = px, py
            self.meter.update(value)
        train_step(x, y)
        return train_step(*self.worst_part, self.meter.avg / (self.meter.worst + 1e-6))


trainer = TwoPassTrainer()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        trainer(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
