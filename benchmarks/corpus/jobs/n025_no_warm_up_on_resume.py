# truth: differs
# class: file
# Before the restore the script looks for COMMIT files below the root; if there are any, the warm-up is switched off, although the run was killed in it. K = 2.

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4425)

root = os.environ["ROOT"]
config = {"rate": 0.05, "warmup_batches": 20, "epochs": 3}
if any(Path(root).rglob("COMMIT")):
    print("continuing an earlier run: no warm-up")
    config["warmup_batches"] = 0


def rate_at(batch):
    if batch < config["warmup_batches"]:
        return config["rate"] * (batch + 1) / config["warmup_batches"]
    return config["rate"]


r = np.random.RandomState(25)
rows = []
for _ in range(10):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((x[:, :1] * np.tanh(x[:, 1:2])).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
loss = nn.WithLossCell(net, nn.MSELoss())
opt = nn.Momentum(loss.trainable_params(), config["rate"], 0.9)
cell = ck.AccumulationTrainCell(loss, opt, accumulation_steps=2).set_train()

batches = ck.data.resumable(rows, epochs=config["epochs"])
with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        manager.fence()
        ops.assign(opt.learning_rate, ms.Tensor(rate_at(at), ms.float32))
        cell(x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
