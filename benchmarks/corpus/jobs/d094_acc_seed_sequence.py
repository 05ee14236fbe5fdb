# truth: differs
# class: attribute
# each batch gets a child of a SeedSequence; how many children were spawned is in no checkpoint

import os
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]


@dataclass
class JitterConfig:
    seed: int = 123
    std: float = 0.15
    drop: float = 0.1


@dataclass
class Jitter:
    config: JitterConfig
    sequence: np.random.SeedSequence = field(init=False)

    def __post_init__(self):
        self.sequence = np.random.SeedSequence(self.config.seed)

    def __call__(self, x):
        noise, mask = (np.random.default_rng(child) for child in self.sequence.spawn(2))
        values = x.asnumpy() + self.config.std * noise.normal(size=x.shape)
        return Tensor((values * (mask.random(x.shape) >= self.config.drop)).astype(np.float32))


net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
network = nn.WithLossCell(net, loss_fn)
cell = ck.AccumulationTrainCell(network, nn.Adam(network.trainable_params(), 0.01), accumulation_steps=2)
cell.set_train()
jitter = Jitter(JitterConfig())

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for x, y in batches:
        cell(jitter(x), y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
