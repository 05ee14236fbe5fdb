# truth: exact
# class: data
# Rows with missing values are replaced by the next good one; the loader remembers which are broken in a set that grows, but a second look would say the same.

import os
import warnings

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4445)


class TolerantLoader:
    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size
        self.broken, self.good = set(), set()
        self.replaced = 0

    def __len__(self):
        return len(self.x) // self.size

    def is_good(self, n):
        if n in self.broken:
            return False
        if n not in self.good:
            if np.isnan(self.x[n]).any():
                warnings.warn(f"row {n} is broken", stacklevel=2)
                self.broken.add(n)
                return False
            self.good.add(n)
        return True

    def nearest_good(self, n):
        if self.is_good(n):
            return n
        self.replaced += 1
        return self.nearest_good((n + 1) % len(self.x))

    def __iter__(self):
        for at in range(0, len(self) * self.size, self.size):
            rows = [self.nearest_good(n) for n in range(at, at + self.size)]
            yield self.x[rows], self.y[rows]


r = np.random.RandomState(45)
x = r.randn(48, 5).astype(np.float32)
y = (x[:, :1] * x[:, 1:2] + x[:, 2:3]).astype(np.float32)
x[[5, 6, 20, 33, 47], 3] = np.nan
net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(loss.trainable_params(), 0.02), accumulation_steps=3).set_train()
loader = TolerantLoader(x, y, 6)

batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for a, b in batches:
        cell(ms.Tensor(a), ms.Tensor(b))
        manager.step(state)
    manager.save_final(state)
print(f"{len(loader.broken)} broken rows, replaced {loader.replaced} times")
os._exit(0)
