# exact, quiet
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
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Source:
    def __init__(self):
        self.visits = np.zeros(64)

    def __getitem__(self, i):
        self.visits[i] += 1
        return X[i] / np.float32(self.visits[i]), Y[i]

    def __len__(self):
        return 64


optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
data = ds.GeneratorDataset(Source(), ["x", "y"], shuffle=False, python_multiprocessing=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
