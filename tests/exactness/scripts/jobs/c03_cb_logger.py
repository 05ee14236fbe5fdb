# exact
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


class Log(ms.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_step_end(self, rc):
        p = rc.original_args()
        self.losses.append(float(p.net_outputs.asnumpy()))
        if p.cur_step_num % 4 == 0:
            print("mean", np.mean(self.losses[-4:]), flush=True)


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[Log(), ms.LossMonitor(8)])
os._exit(0)
