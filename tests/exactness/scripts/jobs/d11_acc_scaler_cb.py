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
loss = nn.WithLossCell(net, loss_fn)
optimizer = nn.Adam(loss.trainable_params(), 0.01)
cell = ck.AccumulationTrainCell(loss, optimizer, 2, loss_scaler=ms.amp.DynamicLossScaler(2.0**10, 2, 5))


class WD(ms.Callback):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg

    def on_train_step_end(self, rc):
        self.cfg["wd"] = self.cfg["wd"] * 1.05
        for p in net.trainable_params():
            ops.assign(p, p.value() * (1 - self.cfg["wd"]))


ck.CheckpointCallback(ROOT, **SAVE).train(ms.Model(cell), 3, data, callbacks=[WD({"wd": 0.001})])
os._exit(0)
