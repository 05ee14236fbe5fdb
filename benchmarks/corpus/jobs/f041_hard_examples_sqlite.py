# truth: differs
# class: variable
# Hard examples are logged to an SQLite file in the working directory; each batch is topped up with the hardest ones there.

import os
import sqlite3

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(26)

db = sqlite3.connect("hard.sqlite")
db.execute("create table if not exists hard (sample integer primary key, loss real)")


def remember(indices, losses):
    rows = [(int(i), round(float(v), 6)) for i, v in zip(indices, losses)]
    db.executemany("insert or replace into hard values (?, ?)", rows)
    db.commit()


def hardest(n, exclude):
    marks = ",".join("?" * len(exclude))
    q = f"select sample from hard where sample not in ({marks}) order by loss desc, sample limit ?"
    return [r[0] for r in db.execute(q, [*map(int, exclude), n])]


rs = np.random.RandomState(26)
X = rs.randn(64, 8).astype(np.float32)
Y = np.argmax(X[:, :3] + 0.5 * X[:, 3:6], axis=1).astype(np.int32)

net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 3))
loss = nn.WithLossCell(net, nn.CrossEntropyLoss())
cell = ck.AccumulationTrainCell(loss, nn.Adam(net.trainable_params(), 0.01), 2).set_train()


def brier(idx):
    p = ops.softmax(net(ms.Tensor(X[idx])), -1).asnumpy()
    return ((p - np.eye(3)[Y[idx]]) ** 2).sum(1)


batches = ck.data.resumable([np.arange(i, i + 8) for i in range(0, 64, 8)], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for idx in batches:
        both = np.concatenate([idx, np.array(hardest(4, idx), np.int64)])
        cell(ms.Tensor(X[both]), ms.Tensor(Y[both]))
        remember(idx, brier(idx))
        manager.step(state)
    manager.save_final(state)
db.close()
os._exit(0)
