# truth: exact
# class: data
# Molecules: a source over EpochSampler writes each ring from another atom, by a generator of (seed, epoch, index); parsed molecules and descriptors are memoized. GRAPH mode.

import functools
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(4450)
ATOMS, LENGTH = "CNOS", 10
WEIGHTS = dict(zip(ATOMS, (12.0, 14.0, 16.0, 32.0)))
TOKENS = {token: number for number, token in enumerate(["pad", *ATOMS, "1", "="])}


class Molecules:
    """rings with a tail, written as a string from any atom of the ring"""

    def __init__(self, count, seed):
        r = np.random.RandomState(seed)
        self.rings = ["".join(r.choice(list(ATOMS), r.randint(4, 7))) for _ in range(count)]
        self.tails = ["".join(r.choice(list("CO"), r.randint(0, 2))) for _ in range(count)]
        self.drawn = 0

    @functools.lru_cache(maxsize=None)
    def property(self, index):
        ring = self.rings[index]
        hetero = sum(ring[i] != "C" and ring[i - 1] != "C" for i in range(len(ring)))
        return np.array([hetero / 2 + sum(WEIGHTS[a] for a in ring + self.tails[index]) / 100], np.float32)

    def written(self, index, start):
        ring = self.rings[index]
        ring = ring[start:] + ring[:start]
        return [ring[0], "1", *ring[1:], "1", *self.tails[index]][:LENGTH]

    def __len__(self):
        return len(self.rings)

    def __getitem__(self, number):
        epoch, index = divmod(int(number), len(self))
        rng = ck.data.sample_rng(450, epoch, index)
        self.drawn += 1
        tokens = [TOKENS[t] for t in self.written(index, int(rng.integers(len(self.rings[index]))))]
        padded = np.zeros(LENGTH, np.int32)
        padded[: len(tokens)] = tokens
        return padded, self.property(index)


class Regressor(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(TOKENS), 6)
        self.mix, self.out = nn.Dense(12, 12), nn.Dense(12, 1)

    def construct(self, tokens, y):
        e = self.embedding(tokens)
        pairs = ops.concat((e[:, 1:], e[:, :-1]), 2)
        return ((self.out(ops.tanh(self.mix(pairs)).mean(1)) - y) ** 2).mean()


molecules = Molecules(48, seed=50)
train = ds.GeneratorDataset(
    molecules,
    ["tokens", "y"],
    sampler=ck.data.EpochSampler(len(molecules), seed=450),
    num_parallel_workers=1,
    python_multiprocessing=False,
).batch(6)
net = Regressor()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.02), accumulation_steps=2)
ckpt = ck.CheckpointCallback(os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ckpt.train(ms.Model(cell), 3, train)
print(molecules.drawn, "strings were written")
os._exit(0)
