# truth: differs
# class: file
# One file, joined here and divided there: os.path.join and Path.

import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(611)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(611)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

FOLDER = os.environ["ROOT"] + "-notes"
os.makedirs(FOLDER, exist_ok=True)
Path(FOLDER, "scale.txt").write_text("1.0")


def scale():
    return float((Path(FOLDER) / "scale.txt").read_text())


def shrink(by):
    now = scale()
    with open(os.path.join(FOLDER, "scale.txt"), "w") as file:
        file.write(str(now * by))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        now = scale()
        opt(tuple(g * now for g in grads))
        shrink(0.95)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
