# truth: exact
# class: file
# A log of the losses in a table of text, and the size of a file that no batch writes.

import csv
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(618)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(618)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

open("constants.txt", "w").write("0.25 0.5")
log = open("log.csv", "w")
table = csv.writer(log)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        size = os.path.getsize("constants.txt")
        loss, grads = vg(ms.Tensor(x * np.float32(1 + 0.01 * size)), ms.Tensor(y))
        opt(grads)
        table.writerow([float(loss)])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
