# truth: differs
# class: variable
# A subclass of random.Random gives each number and then its mirror image, which waits in an attribute; the generator is given by name.

import os
import random

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3146)


class Antithetic(random.Random):
    mirror = None

    def random(self):
        if self.mirror is None:
            u = super().random()
            self.mirror = 1.0 - u
            return u
        u, self.mirror = self.mirror, None
        return u


def augment(image, rng):
    gain = rng.uniform(0.5, 1.5)
    shift = rng.uniform(-0.5, 0.5)
    skew = rng.uniform(-0.2, 0.2)
    return (image * gain + shift + skew * image[:, ::-1]).astype(np.float32)


r = np.random.RandomState(46)
rows = [(a, np.tanh(a[:, :1])) for a in r.randn(8, 6, 5).astype(np.float32)]
net = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9), 1
).set_train()
rng = Antithetic(46)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, rng=rng)
    manager.restore(state)
    for x, y in batches:
        cell(Tensor(augment(x, rng)), Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
