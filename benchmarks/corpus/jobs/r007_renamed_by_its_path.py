# truth: differs
# class: file
# A counter in a file, renamed into its place by a method of its path.

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(607)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(607)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

COUNT = Path("count.txt")
COUNT.write_text("0")

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        count = int(COUNT.read_text())
        loss, grads = vg(ms.Tensor(x / np.float32(1 + 0.1 * count)), ms.Tensor(y))
        opt(grads)
        part = COUNT.with_suffix(".part")
        part.write_text(str(count + 1))
        part.rename(COUNT)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
