# truth: exact
# class: random
# A heap of hard samples and a bandit over step sizes, both with complete state_dicts and a generator by name.

import hashlib
import heapq
import math
import os

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(69)
rng = np.random.default_rng(69)


class HardSamples:
    def __init__(self, limit=12):
        self.limit, self.heap = limit, []

    def add(self, loss, index):
        heapq.heappush(self.heap, (loss, index))
        if len(self.heap) > self.limit:
            heapq.heappop(self.heap)

    def pick(self, n):
        chosen = rng.choice(len(self.heap), n)
        return [self.heap[i][1] for i in chosen]

    def state_dict(self):
        return {"heap": [list(item) for item in self.heap]}

    def load_state_dict(self, state):
        self.heap = [(loss, index) for loss, index in state["heap"]]


class RateBandit:
    rates = (0.3, 0.1, 0.03)

    def __init__(self):
        self.pulls = [1, 1, 1]
        self.gains = [0.0, 0.0, 0.0]
        self.last = 1.0

    def choose(self):
        total = sum(self.pulls)
        scores = [g / n + 0.2 * math.sqrt(math.log(total) / n) for g, n in zip(self.gains, self.pulls)]
        return scores.index(max(scores))

    def learn(self, arm, loss):
        self.pulls[arm] += 1
        self.gains[arm] += self.last - loss
        self.last = loss

    def state_dict(self):
        return {"pulls": self.pulls, "gains": self.gains, "last": self.last}

    def load_state_dict(self, state):
        self.pulls, self.gains = list(state["pulls"]), list(state["gains"])
        self.last = state["last"]


r = np.random.RandomState(59)
x = r.randn(50, 4).astype(np.float32)
y = (x[:, :1] - x[:, 1:2] ** 2).astype(np.float32)
data = ds.NumpySlicesDataset((np.arange(50), x, y), ["i", "x", "y"], shuffle=True).batch(5)
net = nn.SequentialCell(nn.Dense(4, 10), nn.Tanh(), nn.Dense(10, 1))


def forward(a, b):
    each = (net(a) - b) ** 2
    return each.mean(), each


grad_fn = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
hard, bandit = HardSamples(), RateBandit()
batches = ck.data.resumable(data, epochs=4)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net], batches, rng=rng, hard=hard, bandit=bandit)
    manager.restore(state)
    for i, a, b in batches:
        if len(hard.heap) == hard.limit:
            extra = hard.pick(3)
            a = ops.concat((a, ms.Tensor(x[extra])))
            b = ops.concat((b, ms.Tensor(y[extra])))
        arm = bandit.choose()
        (loss, each), grads = grad_fn(a, b)
        for p, g in zip(net.trainable_params(), grads):
            ops.assign_sub(p, bandit.rates[arm] * g)
        bandit.learn(arm, float(loss))
        for index, value in zip(i.asnumpy(), each.asnumpy()[:, 0]):
            hard.add(float(value), int(index))
        manager.step(state)
    manager.save_final(state)
print(hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in net.get_parameters())).hexdigest(), flush=True)
os._exit(0)
