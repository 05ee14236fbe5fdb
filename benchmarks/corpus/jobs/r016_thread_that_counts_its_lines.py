# truth: exact
# class: outside
# A thread writes the losses to a file and counts its lines; nothing reads either.

import os
import queue
import threading

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(616)

net = nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))
mse = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), learning_rate=0.02, momentum=0.9)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
r = np.random.RandomState(616)
rows = [(r.randn(6, 6).astype(np.float32), r.randn(6, 1).astype(np.float32)) for _ in range(8)]


class Lines(threading.Thread):
    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.losses, self.lines = path, queue.Queue(), 0

    def run(self):
        while True:
            loss = self.losses.get()
            with open(self.path, "a") as file:
                print(loss, file=file)
            self.lines += 1


lines = Lines("losses.txt")
lines.start()

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y))
        opt(grads)
        lines.losses.put(float(loss))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
