# truth: differs
# class: file
# Each question and each answer has a connection of its own, to one database.

import contextlib
import os
import sqlite3

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(609)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(609)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

BASE = os.environ["ROOT"] + ".db"
os.makedirs(os.path.dirname(BASE), exist_ok=True)
with contextlib.closing(sqlite3.connect(BASE)) as base:
    base.execute("create table if not exists losses (value real)")


def mean():
    with contextlib.closing(sqlite3.connect(BASE)) as base:
        cursor = base.cursor()
        cursor.execute("select avg(value) from losses")
        return cursor.fetchone()[0] or 1.0


def remember(loss):
    with contextlib.closing(sqlite3.connect(BASE)) as base:
        base.execute("insert into losses values (?)", (loss,))
        base.commit()


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x * np.float32(1 + 0.1 * mean())), ms.Tensor(y))
        opt(grads)
        remember(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
