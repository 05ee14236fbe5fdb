# truth: exact
# class: global
# An RBM with persistent contrastive divergence; the fantasy particles are an attribute that is given by name, draws are NumPy's global ones.

import os
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

import ckptkit as ck

ms.set_seed(1)
np.random.seed(1)
V, H, PARTICLES = 12, 6, 8


class RBM(nn.Cell):
    def __init__(self):
        super().__init__()
        w = np.random.RandomState(0).randn(V, H).astype(np.float32) * 0.1
        self.w = Parameter(Tensor(w), name="w")
        self.b = Parameter(Tensor(np.zeros(V, np.float32)), name="b")
        self.c = Parameter(Tensor(np.zeros(H, np.float32)), name="c")

    def arrays(self):
        return self.w.asnumpy(), self.b.asnumpy(), self.c.asnumpy()


def sigmoid(a):
    return 1.0 / (1.0 + np.exp(-a))


def bernoulli(p):
    return (np.random.random_sample(p.shape) < p).astype(np.float32)


def gibbs(v, rbm):
    w, b, c = rbm.arrays()
    h = bernoulli(sigmoid(v @ w + c))
    return bernoulli(sigmoid(h @ w.T + b))


def statistics(v, rbm):
    w, b, c = rbm.arrays()
    h = sigmoid(v @ w + c)
    return v.T @ h / len(v), v.mean(0), h.mean(0)


rbm = RBM()
opt = nn.Momentum(rbm.trainable_params(), learning_rate=0.1, momentum=0.5)
chain = SimpleNamespace(v=bernoulli(np.full((PARTICLES, V), 0.5)))

patterns = np.random.RandomState(5).rand(4, V) < 0.4
data = np.stack([patterns[i % 4] for i in range(64)]).astype(np.float32)
batches = ck.data.resumable([(data[i : i + 8],) for i in range(0, 64, 8)], epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([rbm, opt], batches, chain=ck.attributes(chain, "v"))
    manager.restore(state)
    for (v0,) in batches:
        chain.v = gibbs(chain.v, rbm)
        positive, negative = statistics(v0, rbm), statistics(chain.v, rbm)
        grads = tuple(Tensor((n - p).astype(np.float32)) for p, n in zip(positive, negative))
        opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
