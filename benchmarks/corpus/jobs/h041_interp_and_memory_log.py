# truth: exact, may be named
# class: file
# np.interp reads the mixing weight off a curve by the number of batches; losses go into an in-memory database that only prints a table.

import os
import sqlite3

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(89)
KNOTS, VALUES = [0, 6, 12, 24], [0.0, 0.4, 0.2, 0.5]


def blend(x, weight):
    """every row with its mirror image, as far as the curve says"""
    return ((1 - weight) * x + weight * x[:, ::-1]).astype(np.float32)


r = np.random.RandomState(71)
X = r.randn(8, 6, 10).astype(np.float32)
Y = X[..., :3].sum(-1, keepdims=True).astype(np.float32)
net = nn.SequentialCell(nn.Dense(10, 5), nn.Tanh(), nn.Dense(5, 1))
mse = nn.MSELoss()
opt = nn.RMSProp(net.trainable_params(), learning_rate=0.01)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

log = sqlite3.connect(":memory:")
log.execute("create table loss (batch integer, value real)")

batches = ck.data.resumable(list(zip(X, Y)), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    point = manager.restore(state)
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        weight = float(np.interp(n, KNOTS, VALUES))
        loss, grads = vg(ms.Tensor(blend(x, weight)), ms.Tensor(y))
        opt(grads)
        log.execute("insert into loss values (?, ?)", (n, float(loss.asnumpy())))
        manager.step(state)
    manager.save_final(state)
for third, mean, n in log.execute("select batch / 8, avg(value), count(*) from loss group by 1"):
    print(f"epoch {third}: {mean:.4f} over {n} batches of this start")
os._exit(0)
