# truth: differs
# class: attribute
# Features are whitened by statistics of the stream in a dataclass; asdict stores all fields, load_state_dict takes those of __init__ only.

import os
from dataclasses import asdict, dataclass, field, fields

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3153)


def zeros():
    return np.zeros(4)


@dataclass
class StreamStatistics:
    n: int = 0
    mean: np.ndarray = field(default_factory=zeros)
    spread: np.ndarray = field(init=False, default_factory=zeros)

    def whiten(self, x):
        for v in x:
            self.n += 1
            d = v - self.mean
            self.mean = self.mean + d / self.n
            self.spread = self.spread + d * (v - self.mean)
        return ((x - self.mean) / np.sqrt(1 + self.spread / self.n)).astype(np.float32)

    def state_dict(self):
        return asdict(self)

    def load_state_dict(self, state):
        self.__init__(**{f.name: state[f.name] for f in fields(self) if f.init})


r = np.random.RandomState(53)
rows = [((a * (3, 1, 2, 5) + 2).astype(np.float32), a[:, :1] - a[:, 3:]) for a in r.randn(8, 6, 4).astype(np.float32)]
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.02), 2
).set_train()
statistics = StreamStatistics()
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, statistics=statistics)
    manager.restore(state)
    for x, y in batches:
        cell(Tensor(statistics.whiten(x)), Tensor(y))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
