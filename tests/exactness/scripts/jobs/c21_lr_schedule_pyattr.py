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
net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()


class Sched(nn.learning_rate_schedule.LearningRateSchedule):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def construct(self, global_step):
        self.calls = self.calls + 1
        return Tensor(0.05 / (1 + 0.2 * self.calls), ms.float32)


optimizer = nn.Momentum(net.trainable_params(), Sched(), 0.9)
data = ds.NumpySlicesDataset((X, Y), ["x", "y"], shuffle=False).batch(8)
model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data)
os._exit(0)
