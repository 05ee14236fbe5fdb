# truth: differs
# class: random
# A jitter object looked up its generator's method once, for speed; load_state_dict makes a new generator, and the bound method still draws from the old one.

import json
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4319)


class Jitter:
    def __init__(self, seed, size):
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.draw = self.rng.standard_normal

    def __call__(self, x):
        return x + ms.Tensor((self.size * self.draw(x.shape)).astype(np.float32))

    def state_dict(self):
        return {"rng": json.dumps(self.rng.bit_generator.state)}

    def load_state_dict(self, state):
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = json.loads(state["rng"])


class Autoencoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encode = nn.Dense(6, 3, activation="tanh")
        self.decode = nn.Dense(3, 6)

    def construct(self, noisy, clean):
        return ((self.decode(self.encode(noisy)) - clean) ** 2).mean()


r = np.random.RandomState(19)
basis = r.randn(3, 6)
rows = [(ms.Tensor((r.randn(8, 3) @ basis).astype(np.float32)),) for _ in range(8)]
net = Autoencoder()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2).set_train()
jitter = Jitter(seed=419, size=0.3)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, jitter=jitter)
    manager.restore(state)
    for (x,) in batches:
        cell(jitter(x), x)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
