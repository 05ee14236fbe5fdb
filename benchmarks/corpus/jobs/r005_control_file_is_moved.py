# truth: differs
# class: file
# A control file is written under another name and moved; each batch reads its factor.

import json
import os
import shutil

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(605)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(605)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

CONTROL = os.environ["ROOT"] + "-control.json"
os.makedirs(os.path.dirname(CONTROL), exist_ok=True)
if not os.path.exists(CONTROL):
    with open(CONTROL, "w") as file:
        json.dump({"factor": 1.0}, file)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        with open(CONTROL) as file:
            control = json.load(file)
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(tuple(g * control["factor"] for g in grads))
        with open(CONTROL + ".new", "w") as file:
            json.dump({"factor": control["factor"] * 0.95}, file)
        shutil.move(CONTROL + ".new", CONTROL)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
