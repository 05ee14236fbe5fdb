# truth: differs
# class: attribute
# Settings are a ChainMap of runtime overrides, experiment and defaults; an autotuner writes what it finds into the top layer.

import os
from collections import ChainMap

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(318)
DEFAULTS = {"lr": 0.05, "noise_floor": 0.0, "clip": 1.0, "tune.shrink": 0.85}
EXPERIMENT = {"clip": 0.8}
settings = ChainMap({}, EXPERIMENT, DEFAULTS)


def autotune(cfg, norm):
    """tighten the clip whenever it did not bite"""
    if norm < cfg["clip"]:
        cfg["clip"] = cfg["clip"] * cfg["tune.shrink"]
    else:
        cfg.setdefault("bites", 0)
        cfg["bites"] += 1
        cfg["clip"] = cfg["clip"] * 1.02


def clipped(grads, limit):
    norm = float(np.sqrt(sum(float((g * g).sum().asnumpy()) for g in grads)))
    scale = min(1.0, limit / (norm + 1e-9))
    return tuple(g * scale for g in grads), norm


net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), settings["lr"], 0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(77)
rows = [
    (ms.Tensor(x), ms.Tensor(np.sin(2 * x[:, :1]).astype(np.float32)))
    for x in (r.randn(6, 4).astype(np.float32) for _ in range(8))
]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(x, y)
        grads, norm = clipped(grads, settings["clip"])
        opt(grads)
        autotune(settings, norm)
        manager.step(state)
    print({k: settings[k] for k in sorted(settings)})
    manager.save_final(state)
os._exit(0)
