# truth: differs
# class: attribute
# HardMiner, a subscriber of an event bus, keeps a table of the running loss of each batch and weighs batches by it

import os
from collections import defaultdict

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def indexed_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for k in range(n):
        x = rng.normal(size=(size, dim))
        y = x[:, :1] * x[:, 1:2] + (0.2 + 0.2 * k) * rng.normal(size=(size, 1))
        yield Tensor([k], ms.int32), Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(indexed_batches(31))
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(net.trainable_params(), 0.02)
grad_fn = ms.value_and_grad(lambda x, y, w: loss_fn(net(x), y) * w, None, optimizer.parameters)


def train_step(x, y, w=1.0):
    loss, grads = grad_fn(x, y, w)
    optimizer(grads)
    return loss


class EventBus:
    def __init__(self):
        self._subscribers = defaultdict(list)

    def on(self, event, fn):
        self._subscribers[event].append(fn)

    def emit(self, event, **payload):
        return [fn(**payload) for fn in self._subscribers[event]]


class HardMiner:
    def __init__(self, bus, n, decay=0.6):
        self.table, self.decay = np.ones(n), decay
        bus.on("loss", self.observe)
        bus.on("weigh", self.weigh)

    def observe(self, index, value):
        self.table[index] = self.decay * self.table[index] + (1 - self.decay) * value

    def weigh(self, index):
        return float(self.table[index] / self.table.mean())


bus = EventBus()
HardMiner(bus, len(rows))
bus.on("loss", lambda index, value: print(f"batch {index}: {value:.4f}"))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    manager.restore(state)
    for index, x, y in batches:
        k = int(index.asnumpy()[0])
        (weight,) = bus.emit("weigh", index=k)
        loss = train_step(x, y, weight)
        bus.emit("loss", index=k, value=float(loss.asnumpy()) / max(weight, 1e-6))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
