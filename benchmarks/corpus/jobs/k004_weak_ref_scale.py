# truth: differs
# class: random
# The noise scale lies in an object that the loop reaches by a weak reference only.

import os

import mindspore as ms
import numpy as np
from mindspore import nn
import weakref

import ckptkit as ck

ms.set_seed(304)


class Scale:
    scale = 1.0


owner = Scale()
owner.scale = 1.0
shared = weakref.ref(owner)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(304)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        shared().scale *= 0.9
        loss, grads = vg(ms.Tensor(x * np.float32(shared().scale)), ms.Tensor(y))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
