# truth: exact
# class: attribute
# The list of losses is an attribute given by name; the loop appends to a variable that was bound to the same list before the restore.

import os
import types

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4316)


class Focused(nn.Cell):
    """the mean of errors to a power, which says how much the large ones count"""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def construct(self, x, y, sharpness):
        error = (self.body(x) - y) ** 2
        return (error * (1 + sharpness * error)).mean()


r = np.random.RandomState(16)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.tanh(x[:, :1] * 2 - x[:, 1:2]).astype(np.float32))))
net = Focused(nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1)))
cell = ck.AccumulationTrainCell(net, nn.Momentum(net.trainable_params(), 0.03, 0.9), accumulation_steps=2).set_train()

book = types.SimpleNamespace(losses=[], worst=0.0)
losses = book.losses  # a short name for the loop

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, book=ck.attributes(book, "losses", "worst"))
    manager.restore(state)
    for x, y in batches:
        sharpness = 1.0 if not losses else float(np.mean(losses) / (losses[-1] + 0.1))
        loss = float(cell(x, y, ms.Tensor(sharpness, ms.float32)).asnumpy())
        losses.append(loss)
        book.worst = max(book.worst, loss)
        manager.step(state)
    manager.save_final(state)
    print(f"{len(losses)} losses, the worst {book.worst:.4f}")
os._exit(0)
