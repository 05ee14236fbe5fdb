# truth: differs
# class: attribute
# A (1+1) evolution strategy with the one-fifth rule: sigma and the record of successes are in a SimpleNamespace.

import os
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(92)


def flatten(params):
    return np.concatenate([p.asnumpy().ravel() for p in params])


def unflatten(params, vector):
    at = 0
    for p in params:
        ops.assign(p, ms.Tensor(vector[at : at + p.size].reshape(p.shape).astype(np.float32)))
        at += p.size


net = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dense(6, 1))
params = list(net.get_parameters())
es = SimpleNamespace(sigma=0.3, wins=[], trials=0)


def fitness(x, y):
    return -float(ops.square(net(x) - y).mean())


def generation(number, x, y):
    parent = flatten(params)
    old = fitness(x, y)
    for child in range(3):
        noise = ck.data.sample_rng(92, number, child).normal(size=parent.shape)
        unflatten(params, parent + es.sigma * noise)
        new = fitness(x, y)
        es.trials += 1
        es.wins = (es.wins + [new > old])[-10:]
        if new > old:
            parent, old = flatten(params), new
        else:
            unflatten(params, parent)
    rate = sum(es.wins) / len(es.wins)
    es.sigma *= 1.15 if rate > 0.2 else 0.87


r = np.random.RandomState(92)
rows = [(ms.Tensor(x), ms.Tensor(x.sum(1, keepdims=True))) for x in r.randn(8, 16, 4).astype(np.float32)]
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait", window="off"),
) as manager:
    state = ck.StateManager(net, batches)
    at = manager.restore(state).batches_delivered
    for number, (x, y) in enumerate(batches, at):
        generation(number, x, y)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
