# truth: exact
# class: attribute
# Gradient accumulation within one batch: it is cut into chunks that fit into memory, their gradients are summed and forgotten after the update.

import os
import time

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(324)


class ChunkedStep:
    """same result as the whole batch, a quarter of the memory"""

    def __init__(self, net, loss_fn, optimizer, chunks):
        self.chunks, self.optimizer = chunks, optimizer
        self._vg = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
        self._sum = None
        self.seconds = []

    def __call__(self, x, y):
        begin = time.perf_counter()
        self._sum, losses = None, []
        for xs, ys in zip(np.array_split(x, self.chunks), np.array_split(y, self.chunks)):
            loss, grads = self._vg(ms.Tensor(xs), ms.Tensor(ys))
            share = len(xs) / len(x)
            scaled = [g * share for g in grads]
            self._sum = scaled if self._sum is None else [a + b for a, b in zip(self._sum, scaled)]
            losses.append(float(loss.asnumpy()) * share)
        self.optimizer(tuple(self._sum))
        self.seconds.append(time.perf_counter() - begin)
        return sum(losses)


net = nn.SequentialCell(nn.Dense(4, 10), nn.ReLU(), nn.Dense(10, 2))
step = ChunkedStep(net, nn.MSELoss(), nn.AdamWeightDecay(net.trainable_params(), 0.01), chunks=4)
r = np.random.RandomState(44)
rows = []
for _ in range(8):
    x = r.randn(10, 4).astype(np.float32)
    rows.append((x, np.stack([x.max(1), x.min(1)], 1).astype(np.float32)))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, step.optimizer], batches)
    manager.restore(state)
    for x, y in batches:
        loss = step(x, y)
        manager.step(state, {"loss": loss})
    print(f"{1e3 * np.mean(step.seconds):.1f} ms per batch")
    manager.save_final(state)
os._exit(0)
