# truth: differs
# class: attribute
# Encodings of anchors are expensive and therefore kept in an LRU (OrderedDict with move_to_end); an entry is as old as its last miss.

import os
from collections import OrderedDict

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(81)


class LRU:
    def __init__(self, compute, capacity):
        self.compute, self.capacity = compute, capacity
        self.items = OrderedDict()
        self.hits = self.misses = 0

    def __getitem__(self, key):
        if key in self.items:
            self.hits += 1
            self.items.move_to_end(key)
            return self.items[key]
        self.misses += 1
        value = self.items[key] = self.compute(key)
        if len(self.items) > self.capacity:
            self.items.popitem(last=False)
        return value


r = np.random.RandomState(60)
anchors = r.randn(6, 1, 8).astype(np.float32)
rows = []
for _ in range(8):
    x = r.randn(6, 8).astype(np.float32)
    rows.append((x, r.choice(6, size=2, replace=False).tolist()))

encoder = nn.SequentialCell(nn.Dense(8, 6), nn.Tanh(), nn.Dense(6, 4))
opt = nn.Adam(encoder.trainable_params(), learning_rate=0.02)


def loss_of(x, positive, negative):
    z = encoder(x)
    near = ((z - positive) ** 2).sum(-1)
    far = ((z - negative) ** 2).sum(-1)
    return ops.relu(near - far + 1.0).mean()


vg = ms.value_and_grad(loss_of, None, encoder.trainable_params())
cache = LRU(lambda k: encoder(ms.Tensor(anchors[k])).asnumpy(), capacity=5)
batches = ck.data.resumable([(ms.Tensor(x), np.array(pair, np.int32)) for x, pair in rows], epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([encoder, opt], batches)
    manager.restore(state)
    for x, pair in batches:
        positive, negative = (ms.Tensor(cache[int(k)]) for k in pair)
        loss, grads = vg(x, positive, negative)
        opt(grads)
        manager.step(state)
    print("hits", cache.hits, "misses", cache.misses)
    manager.save_final(state)
os._exit(0)
