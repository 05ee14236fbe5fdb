# truth: differs
# class: attribute
# A data engine weights near-duplicates down: a Bloom filter over quantized samples is filled while the stream is read.

import os
import zlib

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(71)


class BloomFilter:
    def __init__(self, bits=4096, hashes=3):
        self.bits = bits
        self.hashes = hashes
        self.array = bytearray(bits // 8)

    def _positions(self, key):
        for salt in range(self.hashes):
            yield zlib.crc32(key, salt) % self.bits

    def __contains__(self, key):
        return all(self.array[p >> 3] & (1 << (p & 7)) for p in self._positions(key))

    def add(self, key):
        for p in self._positions(key):
            self.array[p >> 3] |= 1 << (p & 7)


class Deduplicator:
    def __init__(self, duplicate_weight=0.1):
        self.filter = BloomFilter()
        self.duplicate_weight = duplicate_weight

    def __call__(self, x):
        weights = []
        for row in x:
            key = np.round(row).astype(np.int8).tobytes()
            weights.append(self.duplicate_weight if key in self.filter else 1.0)
            self.filter.add(key)
        return np.array(weights, np.float32)


def stream(n=24, bs=5):
    """one pass; about half of the samples were seen before"""
    r = np.random.RandomState(3)
    known = r.randn(30, 6).astype(np.float32) * 2
    out = []
    for _ in range(n):
        fresh = r.randn(bs, 6).astype(np.float32) * 2
        pick = known[r.randint(0, 30, bs)]
        x = np.where(r.rand(bs, 1) < 0.6, pick, fresh).astype(np.float32)
        out.append((x, np.cos(x[:, :1]).astype(np.float32)))
    return out


net = nn.SequentialCell(nn.Dense(6, 12), nn.Tanh(), nn.Dense(12, 1))
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
vg = ms.value_and_grad(lambda x, y, w: (w * ((net(x) - y) ** 2).mean(1)).mean(), None, net.trainable_params())
dedup = Deduplicator()
batches = ck.data.resumable(stream(), epochs=1)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        loss, grads = vg(ms.Tensor(x), ms.Tensor(y), ms.Tensor(dedup(x)))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
