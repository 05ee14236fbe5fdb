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
hist = []


def end(rc):
    p = rc.original_args()
    hist.append(float(p.net_outputs.asnumpy()))
    if len(hist) > 10:
        ops.assign(p.optimizer.learning_rate, Tensor(0.05 * min(1.0, hist[0] / (hist[-1] + 1)), ms.float32))


model = ms.Model(net, loss_fn, optimizer)
ck.CheckpointCallback(ROOT, **SAVE).train(model, 3, data, callbacks=[ms.LambdaCallback(on_train_step_end=end)])
os._exit(0)
