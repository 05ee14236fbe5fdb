# truth: exact
# class: file
# Weights come from one database, losses go to another one.

import os
import sqlite3

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(615)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(615)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

data = sqlite3.connect("weights.db")
data.execute("create table if not exists weights (number integer, weight real)")
data.executemany("insert into weights values (?, ?)", [(n, 1.0 - 0.05 * n) for n in range(8)])
log = sqlite3.connect("losses.db")
log.execute("create table if not exists losses (value real)")

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        number = int(abs(x[0, 0]) * 100) % 8
        weight = data.execute("select weight from weights where number = ?", (number,)).fetchone()[0]
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(tuple(g * weight for g in grads))
        log.execute("insert into losses values (?)", (float(loss),))
        log.commit()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
