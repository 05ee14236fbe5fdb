# truth: differs
# class: variable
# Means as target codes per category are kept in an in-memory SQLite table by upsert, and are an input feature.

import os
import sqlite3

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(16)

db = sqlite3.connect(":memory:")
db.execute("create table enc (category integer primary key, total real not null, n integer not null)")


def encode(categories):
    known = dict(db.execute("select category, (total + 1.0) / (n + 2.0) from enc"))
    return np.array([[known.get(int(c), 0.5)] for c in categories], np.float32)


def learn(categories, targets):
    db.executemany(
        "insert into enc values (?, ?, 1) on conflict (category) do update set total = total + excluded.total, n = n + 1",
        [(int(c), float(t)) for c, t in zip(categories, targets)],
    )
    db.commit()


r = np.random.RandomState(33)
cats = r.randint(0, 12, size=64).astype(np.int32)
num = r.randn(64, 5).astype(np.float32)
target = (np.sin(cats) + num[:, 0] * 0.3).astype(np.float32)
rows = [(cats[i : i + 8], num[i : i + 8], target[i : i + 8, None]) for i in range(0, 64, 8)]

net = nn.SequentialCell(nn.Dense(6, 6), nn.ReLU(), nn.Dense(6, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01), accumulation_steps=2
).set_train()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for c, x, y in batches:
        features = np.concatenate([encode(c), x], axis=1)
        cell(ms.Tensor(features), ms.Tensor(y))
        learn(c, y[:, 0])
        manager.step(state)
    manager.save_final(state)
os._exit(0)
