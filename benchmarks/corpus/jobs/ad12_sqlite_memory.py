# truth: differs
# class: variable

import os
import sqlite3
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(31)
X = rng0.normal(size=(80, 6)).astype(np.float32)
Y = (np.abs(X).argmax(1) % 4).astype(np.int32)
order = rng0.permutation(80)
loader = [(order[i : i + 8], Tensor(X[order[i : i + 8]]), Tensor(Y[order[i : i + 8]])) for i in range(0, 80, 8)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 4))

opt = nn.Adam(net.trainable_params(), 0.01)
grad_fn = ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, opt.parameters)
db = sqlite3.connect(":memory:")
db.execute("create table hard (id integer primary key, loss real)")


def remember(ids, loss):
    db.executemany("insert or replace into hard values (?, ?)", [(int(i), round(loss, 3)) for i in ids])


def hardest(n):
    return [row[0] for row in db.execute("select id from hard order by loss desc, id limit ?", (n,))]


batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for ids, x, y in batches:
        loss, grads = grad_fn(x, y)
        opt(grads)
        remember(ids, float(loss))
        again = hardest(8)
        _, grads = grad_fn(Tensor(X[again]), Tensor(Y[again]))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
