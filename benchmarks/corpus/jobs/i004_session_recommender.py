# truth: differs
# class: attribute
# Session-parallel recommender (GRU4Rec): the hidden state of each user's session is kept in a dict by user number from one batch to the next.

import os
from collections import defaultdict

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(304)
ITEMS, HID = 9, 7


class SessionCell(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(ITEMS, 5)
        self.gate = nn.Dense(5 + HID, HID)
        self.cand = nn.Dense(5 + HID, HID)
        self.out = nn.Dense(HID, ITEMS)

    def construct(self, item, h):
        e = self.embedding(item)
        z = ops.sigmoid(self.gate(ops.concat((e, h), 1)))
        h = (1 - z) * h + z * ops.tanh(self.cand(ops.concat((e, h), 1)))
        return self.out(h), h


class Recommender:
    def __init__(self):
        self.cell = SessionCell()
        self.opt = nn.Adagrad(self.cell.trainable_params(), learning_rate=0.1)
        self.sessions = defaultdict(lambda: np.zeros(HID, np.float32))
        self._vg = ms.value_and_grad(self._loss, None, self.cell.trainable_params(), has_aux=True)

    def _loss(self, item, h, target):
        logits, h = self.cell(item, h)
        return ((ops.softmax(logits, -1) - target) ** 2).sum(-1).mean(), h

    def update(self, users, items, following):
        h = np.stack([self.sessions[int(u)] for u in users])
        onehot = np.eye(ITEMS, dtype=np.float32)[following]
        (loss, h), grads = self._vg(ms.Tensor(items), ms.Tensor(h), ms.Tensor(onehot))
        self.opt(grads)
        for u, row in zip(users, h.asnumpy()):
            self.sessions[int(u)] = row.copy()
        return loss


def log_of_clicks():
    r = np.random.RandomState(5)
    for k in range(8):
        users = r.permutation(6)[:4].astype(np.int32)
        items = r.randint(0, ITEMS, 4).astype(np.int32)
        yield users, items, ((items * 2 + users) % ITEMS).astype(np.int32)


model = Recommender()
batches = ck.data.resumable(list(log_of_clicks()), epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model.cell, model.opt], batches)
    manager.restore(state)
    for users, items, following in batches:
        model.update(users, items, following)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
