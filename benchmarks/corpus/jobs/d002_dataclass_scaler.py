# truth: differs
# class: attribute
# the dataclass ScalerState holds the hand-made loss scale, which decides how hard the scaled gradients are clipped

import os
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

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


@dataclass
class ScalerState:
    scale: float = 8.0
    growth: float = 1.5
    good: int = 0
    every: int = 2

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale, self.good = max(self.scale / self.growth, 1.0), 0
            return
        self.good += 1
        if self.good == self.every:
            self.scale, self.good = self.scale * self.growth, 0


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def scaled_loss(x, y, scale):
    return loss_fn(net(x), y) * scale


grad_fn = ms.value_and_grad(scaled_loss, None, optimizer.parameters)


def amp_step(scaler, x, y, max_norm=4.0):
    loss, grads = grad_fn(x, y, scaler.scale)
    norm = float(np.sqrt(sum((g.asnumpy() ** 2).sum() for g in grads)))
    finite = bool(np.isfinite(norm))
    if finite:
        coef = min(1.0, max_norm / (norm + 1e-6)) / scaler.scale
        optimizer(tuple(g * coef for g in grads))
    scaler.update(finite)
    return float(loss.asnumpy()) / scaler.scale


scaler = ScalerState()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        amp_step(scaler, x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
