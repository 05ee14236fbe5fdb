# truth: exact
# class: outside
# A loader computes batches ahead in a thread, in front of resumable(): each iteration starts a thread that puts the batches of the list into a short queue in order. GRAPH mode, K = 2.

import os
import queue
import threading

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(3556)


class Prefetched:
    END = object()

    def __init__(self, parts, prepare, ahead=2):
        self.parts, self.prepare, self.ahead = parts, prepare, ahead

    def __len__(self):
        return len(self.parts)

    def work(self, out):
        for part in self.parts:
            out.put(self.prepare(part))
        out.put(self.END)

    def __iter__(self):
        ready = queue.Queue(self.ahead)
        threading.Thread(target=self.work, args=(ready,), daemon=True).start()
        while (batch := ready.get()) is not self.END:
            yield batch


def prepare(part):
    x, y = part
    x = (x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-3)
    return x.astype(np.float32), y.astype(np.float32)


r = np.random.RandomState(56)
parts = []
for _ in range(10):
    x = r.randn(6, 6) * r.uniform(0.5, 4, (6, 1))
    parts.append((x, x[:, :1] / (1 + np.abs(x[:, 1:2]))))
net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
cell = ck.AccumulationTrainCell(loss, optimizer, accumulation_steps=2, clip_norm=1.0).set_train()

batches = ck.data.resumable(Prefetched(parts, prepare), epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(ms.Tensor(np.asarray(x)), ms.Tensor(np.asarray(y)))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
