# truth: differs
# class: global
# Gradient vaccine: pairwise target similarities of task gradients follow by EMA in a dict keyed by frozenset.

import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(46)

TASKS = ("sum", "diff", "prod")
similarity = {frozenset(p): 0.0 for p in itertools.combinations(TASKS, 2)}


class Multi(nn.Cell):
    def __init__(self):
        super().__init__()
        self.base = nn.Dense(6, 10, activation="tanh")
        self.heads = nn.CellList([nn.Dense(10, 1) for _ in TASKS])

    def construct(self, x, which):
        return self.heads[which](self.base(x))


def answers(x):
    return {"sum": x[:, :1] + x[:, 1:2], "diff": x[:, :1] - x[:, 2:3], "prod": -x[:, :1] * x[:, 1:2]}


net = Multi()
shared = net.base.trainable_params()
private = [h.trainable_params() for h in net.heads]
opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def vaccinate(flats):
    out = dict(flats)
    for a, b in itertools.permutations(TASKS, 2):
        ga, gb = out[a], flats[b]
        na, nb = np.linalg.norm(ga) + 1e-9, np.linalg.norm(gb) + 1e-9
        phi = float(ga @ gb / na / nb)
        goal = similarity[frozenset((a, b))]
        if phi < goal:
            out[a] = ga + gb * na * (goal * (1 - phi**2) ** 0.5 - phi * (1 - goal**2) ** 0.5) / (
                nb * (1 - goal**2) ** 0.5
            )
        similarity[frozenset((a, b))] = 0.8 * goal + 0.2 * phi
    return out


def step(x):
    flats, heads, shapes = {}, [], [p.shape for p in shared]
    for k, (task, y) in enumerate(answers(x).items()):
        params = shared + private[k]
        g = ms.grad(lambda a, b: ((net(a, k) - b) ** 2).mean(), None, params)(ms.Tensor(x), ms.Tensor(y))
        flats[task] = np.concatenate([v.asnumpy().ravel() for v in g[: len(shared)]])
        heads.extend(g[len(shared) :])
    total = sum(vaccinate(flats).values())
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    base = [ms.Tensor(p.reshape(s).astype(np.float32)) for p, s in zip(np.split(total, cuts), shapes)]
    opt((*base, *heads))


xs = [x for x in np.random.RandomState(46).randn(8, 6, 6).astype(np.float32)]
batches = ck.data.resumable(xs, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([net, opt], batches)
    manager.restore(state)
    for x in batches:
        step(x)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
