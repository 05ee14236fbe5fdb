# truth: differs
# class: attribute
# A file of seven hints stays open and is read line by line, one for each batch, from the top again at its end; a start reads from the first line.

import json
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4426)

root = os.environ["ROOT"]
path = root.rstrip("/") + ".hints.jsonl"
r = np.random.RandomState(26)
with open(path, "w") as out:
    for _ in range(7):
        out.write(json.dumps({"scale": round(0.5 + r.rand(), 3), "shift": round(r.randn() / 4, 3)}) + "\n")


class Hints:
    def __init__(self, path):
        self.file = open(path)

    def next(self):
        line = self.file.readline()
        if not line:
            self.file.seek(0)
            line = self.file.readline()
        return json.loads(line)


rows = []
for _ in range(8):
    x = r.randn(6, 4).astype(np.float32)
    rows.append((x, ms.Tensor((x[:, :1] ** 2 - x[:, 1:2]).astype(np.float32))))
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
opt = nn.Adam(net.trainable_params(), 0.02)
mse = nn.MSELoss()
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
hints = Hints(path)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(root, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        hint = hints.next()
        loss, grads = gradients(ms.Tensor((hint["scale"] * np.asarray(x) + hint["shift"]).astype(np.float32)), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
