# truth: differs
# class: attribute
# Targets are rank-transformed against all targets seen so far, which bisect.insort keeps sorted in a transformer object.

import bisect
import os
from statistics import NormalDist

import mindspore as ms
import numpy as np
from mindspore import nn

import ckptkit as ck

ms.set_seed(2)


class OnlineRankGauss:
    def __init__(self):
        self.sorted_ = []
        self.normal = NormalDist()

    def partial_fit(self, values):
        for v in values:
            bisect.insort(self.sorted_, float(v))
        return self

    def transform(self, values):
        n = len(self.sorted_)
        ranks = [bisect.bisect_left(self.sorted_, float(v)) for v in values]
        return np.array([[self.normal.inv_cdf((k + 0.5) / (n + 1))] for k in ranks], np.float32)


rng = np.random.default_rng(3)
X = rng.normal(size=(80, 6)).astype(np.float32)
X[40:] += 0.7
Y = np.exp(X[:, 0] + 0.5 * X[:, 1]).astype(np.float32)
data = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 80, 10)]

net = nn.SequentialCell(nn.Dense(6, 6), nn.ELU(), nn.Dense(6, 1))
mse = nn.MSELoss()
opt = nn.AdamWeightDecay(net.trainable_params(), learning_rate=0.01, weight_decay=0.02)
vg = ms.value_and_grad(lambda x, y: mse(net(x), y), None, net.trainable_params())
ranker = OnlineRankGauss()

batches = ck.data.resumable(data, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x, y in batches:
        target = ranker.partial_fit(y).transform(y)
        loss, grads = vg(ms.Tensor(x), ms.Tensor(target))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
