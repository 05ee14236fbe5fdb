# differs, named
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
from mindspore.experimental import optim

net = nn.Dense(8, 1)
optimizer = optim.Adam(net.trainable_params(), lr=0.02)
sched = optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)
gf = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, net.trainable_params())
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        l, gr = gf(x, y)
        optimizer(gr)
        sched.step()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
