# differs, named
import os, sys, random, math, functools, itertools, collections, contextvars, contextlib, dataclasses, enum, types, copy, threading, queue, operator, weakref, heapq, bisect, abc, typing
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
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)


def forward_fn(x, y):
    return loss_fn(net(x), y)


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)
import logging

log = logging.LoggerAdapter(logging.getLogger("t14"), {"step": 0})
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([net, optimizer], batches)
    point = manager.restore(state)
    for x, y in batches:
        log.extra["step"] += 1
        loss, grads = grad_fn(x, y)
        optimizer(tuple(q / log.extra["step"] for q in grads))
        log.info("loss")
        manager.step(state)
    manager.save_final(state)
os._exit(0)
