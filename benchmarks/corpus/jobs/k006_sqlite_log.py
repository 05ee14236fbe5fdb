# truth: exact
# class: file
# Losses are rows of a database on disk that nothing reads.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
import sqlite3

import ckptkit as ck

ms.set_seed(306)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(306)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    base = sqlite3.connect("losses.db")
    base.execute("create table if not exists losses (step int, value real)")
    for step, (x, y) in enumerate(batches):
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        base.execute("insert into losses values (?, ?)", (step, float(loss.asnumpy())))
        base.commit()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
