# truth: differs
# class: attribute
# A cursor asks, and a later statement fetches the number of rows, which scales the batch; another connection adds rows.

import contextlib
import os
import sqlite3

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(608)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(608)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

base = sqlite3.connect("rows.db")
base.execute("create table if not exists rows (loss real)")
cursor = base.cursor()


def remember(loss):
    with contextlib.closing(sqlite3.connect("rows.db")) as other, other:
        other.execute("insert into rows values (?)", (loss,))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        cursor.execute("select count(*) from rows")
        (number,) = cursor.fetchone()
        loss, grads = vg(ms.Tensor(x / np.float32(1 + 0.1 * number)), ms.Tensor(y))
        opt(grads)
        remember(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
