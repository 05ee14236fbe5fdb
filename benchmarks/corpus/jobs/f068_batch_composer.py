# truth: differs
# class: attribute
# Adaptive batch composition: samples that did not fit the token budget wait in a heap for one of the next batches.

import heapq
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(28)
BUDGET, WIDTH = 24, 9


class Composer:
    """Takes what arrives, gives what fits; the oldest and shortest first."""

    def __init__(self, budget):
        self.budget = budget
        self.waiting = []
        self.clock = 0

    def __call__(self, arrivals):
        for seq in arrivals:
            self.clock += 1
            heapq.heappush(self.waiting, (len(seq) - 0.2 * self.clock * 0.1, self.clock, seq))
        chosen, used = [], 0
        while self.waiting and used + len(self.waiting[0][2]) <= self.budget:
            seq = heapq.heappop(self.waiting)[2]
            used += len(seq)
            chosen.append(seq)
        return chosen


def collate(seqs):
    ids = np.zeros((len(seqs), WIDTH), np.int32)
    for row, s in zip(ids, seqs):
        row[: len(s)] = s
    return ms.Tensor(ids)


class NextToken(nn.Cell):
    def __init__(self, vocab=10, dim=6):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Dense(2 * dim, dim, activation="tanh")
        self.out = nn.Dense(dim, vocab)
        self.vocab = vocab

    def construct(self, ids):
        e = self.emb(ids)
        h = self.mix(ops.concat((e[:, 1:-1], e[:, :-2]), axis=-1))
        return ops.cross_entropy(self.out(h).reshape(-1, self.vocab), ids[:, 2:].reshape(-1))


r = np.random.RandomState(28)
stream = [[r.randint(1, 10, r.randint(3, WIDTH + 1)) for _ in range(5)] for _ in range(8)]
compose = Composer(BUDGET)
net = NextToken()
cell = ck.AccumulationTrainCell(net, nn.Adam(net.trainable_params(), 0.01), 2, normalize="samples").set_train()
batches = ck.data.resumable([np.array([pad for s in b for pad in (*s, 0)]) for b in stream], epochs=3)


def split(flat):
    cuts = np.flatnonzero(flat == 0)
    return [s[s > 0] for s in np.split(flat, cuts)][:-1]


with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    for flat in batches:
        cell(collate(compose(split(flat))))
        manager.step(state)
    manager.save_final(state)
os._exit(0)
