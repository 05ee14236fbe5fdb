# truth: differs
# class: attribute
# A sample is an object that knows how often it was visited; the strength of its augmentation grows with that, the generator is given by name.

import os
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3159)


@dataclass
class Sample:
    image: np.ndarray
    label: float
    visits: int = 0

    def view(self, rng):
        strength = 0.15 * self.visits
        self.visits += 1
        return self.image + strength * rng.standard_normal(self.image.shape).astype(np.float32)


def read(n):
    r = np.random.RandomState(59)
    for _ in range(n):
        image = r.rand(6).astype(np.float32)
        yield Sample(image, float(image[:3].sum() - image[3:].sum()))


samples = list(read(40))
index_batches = [np.arange(i, i + 5) for i in range(0, 40, 5)]
net = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.05, 0.9), 1
).set_train()
rng = np.random.default_rng(59)
batches = ck.data.resumable(index_batches, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, rng=rng)
    manager.restore(state)
    for numbers in batches:
        picked = [samples[int(i)] for i in numbers]
        x = np.stack([s.view(rng) for s in picked]).astype(np.float32)
        y = np.array([[s.label] for s in picked], np.float32)
        cell(Tensor(x), Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
