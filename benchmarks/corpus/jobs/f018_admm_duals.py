# truth: differs
# class: global
# ADMM for sparse weights: auxiliary Z and dual U are NumPy arrays in a namedtuple per layer.

import os
from collections import namedtuple

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(41)
Split = namedtuple("Split", "z u")
RHO, KEEP = 0.2, 20


def project(w, keep=KEEP):
    """nearest array with `keep` non-zeros"""
    cut = np.sort(np.abs(w).ravel())[-min(keep, w.size)]
    return np.where(np.abs(w) >= cut, w, 0).astype(np.float32)


class Augmented(nn.Cell):
    def __init__(self, net, weights):
        super().__init__()
        self.net = net
        self.weights = ms.ParameterTuple(weights)

    def construct(self, x, y, targets):
        loss = ((self.net(x) - y) ** 2).mean()
        for w, t in zip(self.weights, targets):
            loss = loss + 0.5 * RHO * ((w - t) ** 2).sum()
        return loss


net = nn.SequentialCell(nn.Dense(10, 8), nn.ELU(), nn.Dense(8, 4))
weights = [p for p in net.trainable_params() if p.ndim == 2]
loss_cell = Augmented(net, weights)
optim = nn.Momentum(net.trainable_params(), 0.05, 0.5)
cell = ck.AccumulationTrainCell(loss_cell, optim, 1).set_train()

splits = {p.name: Split(project(p.asnumpy()), np.zeros(p.shape, np.float32)) for p in weights}


def dual_update():
    for p in weights:
        w, old = p.asnumpy(), splits[p.name]
        z = project(w + old.u)
        splits[p.name] = Split(z, old.u + w - z)


r = np.random.RandomState(0)
loader = [(ms.Tensor(x), ms.Tensor(x[:, :4] - x[:, 4:8])) for x in r.randn(8, 5, 10).astype(np.float32)]
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager(cell, batches)
    point = manager.restore(state)
    for i, (x, y) in enumerate(batches, point.batches_delivered):
        cell(x, y, tuple(ms.Tensor(splits[p.name].z - splits[p.name].u) for p in weights))
        if i % 2:
            dual_update()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
