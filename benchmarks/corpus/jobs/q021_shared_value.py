# truth: differs
# class: outside
# The global step and rate are multiprocessing.Value objects, ready for workers that this script does not start yet.

import hashlib
import math
import multiprocessing as mp
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(31)


class SharedSchedule:
    def __init__(self, total):
        self.step = mp.Value("i", 0)
        self.total = total

    def advance(self):
        with self.step.get_lock():
            self.step.value += 1

    @property
    def factor(self):
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self.step.value / self.total))


r = np.random.RandomState(21)
x = r.randn(60, 4).astype(np.float32)
y = (x[:, :1] * x[:, 3:]).astype(np.float32)
data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))
opt = nn.SGD(net.trainable_params(), 0.2, momentum=0.5)
mse = nn.MSELoss()
grad_fn = ms.value_and_grad(lambda a, b: mse(net(a), b), None, opt.parameters)
schedule = SharedSchedule(40)
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for a, b in batches:
        loss, grads = grad_fn(a, b)
        opt(tuple(g * schedule.factor for g in grads))
        schedule.advance()
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
