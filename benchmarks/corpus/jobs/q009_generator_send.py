# truth: differs
# class: attribute
# The scheduler is a generator: it is sent the loss and yields the factor for the next gradients.

import hashlib
import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(19)


def restarts(period=7):
    phase, loss, best = 0, None, math.inf
    while True:
        loss = yield 0.5 * (1 + math.cos(math.pi * phase / period))
        phase += 1
        if phase == period or loss > 3 * best:
            phase = 0
        best = min(best, loss)


class Experiment:
    def __init__(self):
        r = np.random.RandomState(9)
        x = r.randn(60, 5).astype(np.float32)
        y = (x**2).mean(1, keepdims=True).astype(np.float32)
        self.data = ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=True).batch(6)
        self.net = nn.SequentialCell(nn.Dense(5, 10), nn.ReLU(), nn.Dense(10, 1))
        self.opt = nn.SGD(self.net.trainable_params(), 0.1)
        mse = nn.MSELoss()
        self.grad_fn = ms.value_and_grad(lambda a, b: mse(self.net(a), b), None, self.opt.parameters)

    def run(self):
        scheduler = restarts()
        factor = next(scheduler)
        for a, b in ck.loop(
            os.environ["ROOT"],
            self.data,
            epochs=4,
            train=[self.net, self.opt],
            save=ck.SaveEvery(micro_steps=5),
            saving=ck.Saving(when_busy="wait"),
        ):
            loss, grads = self.grad_fn(a, b)
            self.opt(tuple(g * factor for g in grads))
            factor = scheduler.send(float(loss))


experiment = Experiment()
experiment.run()
net = experiment.net
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
