# truth: exact
# class: variable
# mindspore.experimental.optim: a smoothed loss lives in the optimizer's param_groups under a key of its own, next to the rate that follows from it.

import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.experimental import optim

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4142)


def adapt(group, loss):
    group["level"] = loss if group["level"] < 0 else 0.9 * group["level"] + 0.1 * loss
    rate = group["peak"] * min(2.0, loss / group["level"])
    ops.assign(group["lr"], ms.Tensor(rate, ms.float32))


r = np.random.RandomState(42)
rows = []
for _ in range(8):
    x = r.randn(8, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(np.abs(x).mean(1, keepdims=True).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = optim.SGD(net.trainable_params(), lr=0.02, momentum=0.9)
for group in opt.param_groups:
    group["level"], group["peak"] = -1.0, 0.02
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(x, y)
        manager.fence()
        for group in opt.param_groups:
            adapt(group, float(loss.asnumpy()))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
