# truth: exact
# class: attribute
# Much is kept in meters, histories and caches, but only printed, or a pure function of the shape.

import os
from collections import defaultdict, deque
from functools import lru_cache

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(55)


class AverageMeter:
    def __init__(self, fmt="{:.4f}"):
        self.fmt = fmt
        self.window = deque(maxlen=10)
        self.count, self.total, self.best = 0, 0.0, float("inf")

    def update(self, v):
        self.window.append(v)
        self.count += 1
        self.total += v
        self.best = min(self.best, v)

    def __str__(self):
        return self.fmt.format(np.mean(self.window)) + " best " + self.fmt.format(self.best)


@lru_cache(maxsize=None)
def causal_mask(n):
    return ms.Tensor(np.triu(np.full((n, n), -1e4, np.float32), 1))


class TinyAttention(nn.Cell):
    def __init__(self, vocab=12, dim=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.q, self.k, self.v = nn.Dense(dim, dim), nn.Dense(dim, dim), nn.Dense(dim, dim)
        self.head = nn.Dense(dim, vocab)
        self.vocab = vocab

    def construct(self, tokens, labels, mask):
        h = self.embed(tokens)
        score = ops.bmm(self.q(h), self.k(h).swapaxes(1, 2)) / 8**0.5 + mask
        h = h + ops.bmm(ops.softmax(score, -1), self.v(h))
        return ops.cross_entropy(self.head(h).reshape(-1, self.vocab), labels.reshape(-1))


net = TinyAttention()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 4, remainder="flush").set_train()
r = np.random.RandomState(8)
tokens = [r.randint(0, 12, (3, n)).astype(np.int32) for n in (5, 7, 5, 6, 7, 5, 6, 5, 7)]
batches = ck.data.resumable([(t[:, :-1], t[:, 1:]) for t in tokens], epochs=3)
meters = defaultdict(AverageMeter)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for a, b in batches:
        loss = cell(ms.Tensor(a), ms.Tensor(b), causal_mask(a.shape[1]))
        meters["loss"].update(float(loss.asnumpy()))
        meters["len"].update(a.shape[1])
        if meters["loss"].count % 6 == 0:
            print({k: str(v) for k, v in meters.items()})
        manager.step(state)
    manager.save_final(state)
os._exit(0)
