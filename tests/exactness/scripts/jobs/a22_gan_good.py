# refused or exact
import os, sys, random, math, functools, itertools, collections, contextvars, contextlib, dataclasses, enum, types, copy, threading, queue, operator, heapq, abc, typing, logging, argparse, json, time
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)
g = np.random.default_rng(5)
X, Y = g.normal(size=(64, 8)).astype(np.float32), g.normal(size=(64, 1)).astype(np.float32)
rows = [(Tensor(X[i * 8 : i * 8 + 8]), Tensor(Y[i * 8 : i * 8 + 8])) for i in range(8)]
loss_fn = nn.MSELoss()
G = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 8))
D = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
for _n, _c in (("G.", G), ("D.", D)):
    _c.update_parameters_name(_n)
og, od = nn.Adam(G.trainable_params(), 0.005), nn.Adam(D.trainable_params(), 0.005)
bce = nn.BCEWithLogitsLoss()


def d_loss(real, fake):
    a, b = D(real), D(fake)
    return bce(a, ops.ones_like(a)) + bce(b, ops.zeros_like(b))


def g_loss(z):
    a = D(G(z))
    return bce(a, ops.ones_like(a))


gd = ms.value_and_grad(d_loss, None, od.parameters)
gg = ms.value_and_grad(g_loss, None, og.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([G, D, og], batches, second_optimizer=od)
    point = manager.restore(state)
    for x, y in batches:
        z = Tensor(np.random.randn(8, 4).astype(np.float32))
        l, gr = gd(x, ops.stop_gradient(G(z)))
        od(gr)
        l, gr = gg(z)
        og(gr)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
