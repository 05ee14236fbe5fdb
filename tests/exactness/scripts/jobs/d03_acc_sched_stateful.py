# refused
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


class Ramp:
    def __init__(self):
        self.k = 1

    def __call__(self, step):
        if step and step % 4 == 0:
            self.k = min(4, self.k + 1)
        return self.k


cell = ck.AccumulationTrainCell(nn.WithLossCell(net, loss_fn), optimizer, Ramp())
ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data)
os._exit(0)
