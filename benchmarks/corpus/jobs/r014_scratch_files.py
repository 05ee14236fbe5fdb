# truth: exact
# class: file
# Files that each batch writes whole and reads again: an array, a number in JSON, a text that is moved.

import json
import os
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(614)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(614)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        np.save("batch.npy", x * 0.5)
        half = np.load("batch.npy")
        loss, grads = vg(ms.Tensor(half), ms.Tensor(y))
        with open("loss.json", "w") as file:
            json.dump({"loss": float(loss)}, file)
        with open("loss.json") as file:
            norm = 1 + json.load(file)["loss"]
        scale = Path("scale.txt")
        scale.with_suffix(".part").write_text(str(1 / norm))
        os.replace("scale.part", "scale.txt")
        factor = float(scale.read_text())
        opt(tuple(g * factor for g in grads))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
