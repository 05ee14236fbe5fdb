# truth: differs
# class: outside
# A thread gets the losses and sets the scale of the batches from their number.

import os
import queue
import threading

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(617)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(617)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]

losses, done, settings = queue.Queue(), queue.Queue(), {"scale": 1.0}


def adapt():
    while True:
        losses.get()
        settings["scale"] *= 0.97
        done.put(True)


threading.Thread(target=adapt, daemon=True).start()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x * np.float32(settings["scale"])), ms.Tensor(y))
        opt(grads)
        losses.put(float(loss))
        done.get()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
