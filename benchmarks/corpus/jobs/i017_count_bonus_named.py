# truth: exact
# class: attribute
# A count-based exploration bonus over SimHash codes; the table of counts is an object with state_dict and load_state_dict that is given by name.

import os
from collections import Counter

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(317)


class SimHashCounter:
    def __init__(self, dim, bits, seed):
        self.planes = np.random.RandomState(seed).randn(dim, bits)
        self.table = Counter()

    def codes(self, obs):
        return ["".join("1" if b else "0" for b in row) for row in (obs @ self.planes > 0)]

    def bonus(self, obs):
        codes = self.codes(obs)
        self.table.update(codes)
        return np.array([1.0 / np.sqrt(self.table[c]) for c in codes], np.float32)

    def state_dict(self):
        return {"codes": list(self.table), "counts": [int(v) for v in self.table.values()]}

    def load_state_dict(self, state):
        self.table = Counter(dict(zip(state["codes"], state["counts"])))


value = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 1))
cell = ck.AccumulationTrainCell(
    nn.WithLossCell(value, nn.MSELoss()), nn.Adam(value.trainable_params(), 0.01), 3, remainder="carry"
).set_train()
counts = SimHashCounter(4, 4, seed=1)
r = np.random.RandomState(71)
rows = []
for _ in range(8):
    obs = r.randn(6, 4).astype(np.float32)
    rows.append((obs, (obs[:, :1] > 0).astype(np.float32)))

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches, counts=counts)
    manager.restore(state)
    for obs, reward in batches:
        target = reward + 0.5 * counts.bonus(obs)[:, None]
        cell(ms.Tensor(obs), ms.Tensor(target))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
