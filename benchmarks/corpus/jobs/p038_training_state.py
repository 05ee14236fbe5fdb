# truth: differs
# class: variable
# The loop's own state is a dataclass, of which the checkpoint gets what matters.

import dataclasses
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(138)


@dataclasses.dataclass
class TrainingState:
    best: float = float("inf")
    stalled: int = 0
    loss_average: float = 0.0
    focus: float = 0.0

    def update(self, loss):
        self.loss_average = loss if self.loss_average == 0.0 else 0.9 * self.loss_average + 0.1 * loss
        if self.loss_average < self.best * 0.98:
            self.best, self.stalled = self.loss_average, 0
        else:
            self.stalled += 1
        self.focus = min(2.0, self.focus + 0.05 * (1 + self.stalled))


r = np.random.RandomState(40)
labels = (r.rand(80) < 0.25).astype(np.float32)
x = (r.randn(80, 6) + labels[:, None] * np.array([1.5, -1, 1, 0, 0, 0])).astype(np.float32)
train = ds.NumpySlicesDataset((x, labels[:, None]), ["x", "y"], shuffle=True).batch(8)
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1), nn.Sigmoid())
optimizer = nn.Adam(net.trainable_params(), 1e-2)


def forward(x, y, focus):
    error = (net(x) - y).abs()
    return ((error + 0.01) ** focus * error**2).mean(), (error**2).mean()


grad_fn = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
kept = TrainingState()
batches = ck.data.resumable(train, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, optimizer], batches, kept=ck.attributes(kept, "best", "stalled", "loss_average"))
    manager.restore(state)
    for xb, yb in batches:
        (_, plain), grads = grad_fn(xb, yb, ms.Tensor(kept.focus, ms.float32))
        optimizer(grads)
        kept.update(float(plain.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
