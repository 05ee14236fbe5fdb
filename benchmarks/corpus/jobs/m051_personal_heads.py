# truth: exact
# class: attribute
# Federated learning with personal heads: four heads in a CellList, whose turn it is follows from the restored position; a round's messages are only counted.

import os
from collections import Counter

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(4351)
CLIENTS = 4


class Personal(nn.Cell):
    def __init__(self):
        super().__init__()
        self.body = nn.SequentialCell(nn.Dense(5, 8), nn.Tanh())
        self.heads = nn.CellList([nn.Dense(8, 1) for _ in range(CLIENTS)])
        self.rounds = ms.Parameter(ms.Tensor(np.zeros(CLIENTS), ms.float32), name="rounds", requires_grad=False)


class Client:
    """knows its head and how to train it; everything that lasts is in the model"""

    def __init__(self, model, number):
        self.model, self.number = model, number
        self.head = model.heads[number]
        self.weights = model.body.trainable_params() + self.head.trainable_params()
        self.gradients = ms.value_and_grad(self.loss, None, self.weights)
        self.sent = Counter()

    def loss(self, x, y):
        return ((self.head(self.model.body(x)) - y) ** 2).mean()

    def round(self, x, y, steps=2):
        done = float(self.model.rounds[self.number].asnumpy())
        rate = 0.1 / (1 + 0.3 * done)
        for _ in range(steps):
            loss, grads = self.gradients(x, y)
            for p, g in zip(self.weights, grads):
                ops.assign(p, p - rate * g)
            self.sent["bytes"] += sum(4 * p.size for p in self.model.body.trainable_params())
        rounds = self.model.rounds.asnumpy().copy()
        rounds[self.number] += 1
        ops.assign(self.model.rounds, ms.Tensor(rounds))
        return float(loss.asnumpy())


r = np.random.RandomState(51)
slopes = r.randn(CLIENTS)
rows = []
for i in range(8):
    x = r.randn(6, 5).astype(np.float32)
    rows.append((ms.Tensor(x), ms.Tensor((np.abs(x[:, :1]) + slopes[i % CLIENTS] * x[:, 1:2]).astype(np.float32))))
model = Personal()
clients = [Client(model, number) for number in range(CLIENTS)]

batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([model], batches)
    point = manager.restore(state)
    for number, (x, y) in enumerate(batches, point.batches_delivered):
        manager.fence()
        loss = clients[number % CLIENTS].round(x, y)
        print(f"round {number}: {loss:.4f}")
        manager.step(state)
    manager.save_final(state)
    print("sent by this start:", [client.sent["bytes"] for client in clients])
os._exit(0)
