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
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
valid = ds.NumpySlicesDataset((X[:16], Y[:16]), ["x", "y"], shuffle=False).batch(8)


class Sel(ms.Callback):
    def on_eval_end(self, rc):
        v = rc.original_args().metrics["mae"]
        globals().setdefault("scores", []).append(v)

    def on_train_step_end(self, rc):
        s = globals().get("scores", [])
        if len(s) and rc.original_args().cur_step_num % 4 == 0:
            ops.assign(optimizer.learning_rate, Tensor(0.05 * min(1, s[0]), ms.float32))


model = ms.Model(net, loss_fn, optimizer, metrics={"mae"})
ck.CheckpointCallback(ROOT, **SAVE).fit(model, 3, data, valid, callbacks=[Sel()])
os._exit(0)
