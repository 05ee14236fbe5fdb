# truth: exact
# class: random
# Three effects draw by bound methods of one generator; the rig that is given by name sets the state of its bit generator in place, so that all three follow.

import json
import os

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4320)


class Gain:
    def __init__(self, rng):
        self.uniform = rng.uniform

    def __call__(self, x):
        return x * self.uniform(0.8, 1.2, (len(x), 1))


class Dropouts:
    def __init__(self, rng, share):
        self.random, self.share = rng.random, share

    def __call__(self, x):
        return x * (self.random(x.shape) >= self.share)


class Hum:
    def __init__(self, rng, size):
        self.normal, self.size = rng.normal, size

    def __call__(self, x):
        phase = self.normal()
        return x + self.size * np.sin(np.arange(x.shape[1]) + phase)


class Rig:
    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)
        self.effects = [Gain(self._rng), Dropouts(self._rng, 0.1), Hum(self._rng, 0.2)]

    def __call__(self, x):
        for effect in self.effects:
            x = effect(x)
        return ms.Tensor(x.astype(np.float32))

    def state_dict(self):
        return {"bits": json.dumps(self._rng.bit_generator.state)}

    def load_state_dict(self, state):
        self._rng.bit_generator.state = json.loads(state["bits"])


r = np.random.RandomState(20)
rows = [(x, ms.Tensor(x.max(1, keepdims=True))) for x in r.randn(8, 6, 7).astype(np.float32)]
net, mse = nn.SequentialCell(nn.Dense(7, 8), nn.Tanh(), nn.Dense(8, 1)), nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.04, 0.9)
gradients = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
rig = Rig(20)

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches, rig=rig)
    manager.restore(state)
    for x, y in batches:
        loss, grads = gradients(rig(x), y)
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
