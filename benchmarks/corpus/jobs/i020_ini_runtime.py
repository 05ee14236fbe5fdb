# truth: differs
# class: variable
# The job is configured by an INI text; a watchdog lowers the rate in the ConfigParser itself whenever the loss goes up, as operators did by hand before.

import configparser
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

INI = """
[model]
hidden = 8
[optim]
rate = 0.08
decay = 0.85
[watchdog]
previous = inf
"""
cfg = configparser.ConfigParser()
cfg.read_string(INI)
ms.set_seed(320)

hidden = cfg.getint("model", "hidden")
net = nn.SequentialCell(nn.Dense(4, hidden), nn.Tanh(), nn.Dense(hidden, 1))
params = net.trainable_params()
mse = nn.MSELoss()
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())


def watchdog(section, optim, loss):
    if loss > section.getfloat("previous"):
        optim["rate"] = repr(optim.getfloat("rate") * optim.getfloat("decay"))
    section["previous"] = repr(loss)


def apply(grads):
    rate = cfg.getfloat("optim", "rate")
    for p, g in zip(params, grads):
        ops.assign_sub(p, rate * g)


r = np.random.RandomState(12)
rows = []
for k in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor(((1 + k % 3) * x[:, :1]).astype(np.float32))))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches)
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        loss, grads = vg(x, y)
        apply(grads)
        watchdog(cfg["watchdog"], cfg["optim"], float(loss.asnumpy()))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
