# truth: exact
# class: attribute
# A retry decorator takes a step back and halves it while the loss rises, all within one batch; how often it did so is counted for the log only.

import functools
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(344)
statistics = {"calls": 0, "retries": 0}


class Worse(Exception):
    pass


def retry(times, shrink):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(params, *args, rate):
            statistics["calls"] += 1
            saved = [p.asnumpy().copy() for p in params]
            for attempt in range(times):
                try:
                    return fn(params, *args, rate=rate, last=attempt == times - 1)
                except Worse:
                    statistics["retries"] += 1
                    rate *= shrink
                    for p, w in zip(params, saved):
                        ops.assign(p, ms.Tensor(w))

        return wrapper

    return decorate


net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())


@retry(times=4, shrink=0.5)
def descend(params, x, y, rate, last):
    loss, grads = vg(x, y)
    for p, g in zip(params, grads):
        ops.assign_sub(p, rate * g)
    after = mse(net(x), y)
    if not last and float(after.asnumpy()) > float(loss.asnumpy()):
        raise Worse
    return float(after.asnumpy())


r = np.random.RandomState(44)
rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((3 * np.tanh(2 * x[:, :1])).astype(np.float32))))
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        loss = descend(net.trainable_params(), x, y, rate=1.0)
        manager.step(state, {"loss": loss})
    print("{retries} retries in {calls} steps of this start".format(**statistics))
    manager.save_final(state)
os._exit(0)
