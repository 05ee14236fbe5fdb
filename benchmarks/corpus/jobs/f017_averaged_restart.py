# truth: differs
# class: attribute
# Within a context manager the running average of an epoch's weights is taken and becomes the start of the next epoch.

import os
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(33)


@contextmanager
def averaging(parameters):
    total = [np.zeros(p.shape, np.float64) for p in parameters]
    n = 0

    def add():
        nonlocal n
        n += 1
        for t, p in zip(total, parameters):
            t += p.asnumpy()

    def pull():
        nonlocal n
        if n:
            for t, p in zip(total, parameters):
                ops.assign(p, ms.Tensor((t / n).astype(np.float32)))
                t[...] = 0
        n = 0

    yield add, pull
    print("left with", n, "weights not yet averaged")


r = np.random.RandomState(4)
loader = [(ms.Tensor(x), ms.Tensor(np.abs(x[:, :2]))) for x in r.randn(10, 4, 6).astype(np.float32)]
net = nn.SequentialCell(nn.Dense(6, 12), nn.ReLU(), nn.Dense(12, 2))
loss_net = nn.WithLossCell(net, nn.SmoothL1Loss())
opt = nn.Adagrad(net.trainable_params(), learning_rate=0.1)
cell = ck.AccumulationTrainCell(loss_net, opt, accumulation_steps=1).set_train()

batches = ck.data.resumable(loader, epochs=3)
with (
    ck.CheckpointManager(
        os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
    ) as manager,
    averaging(opt.parameters) as (add, pull),
):
    state = ck.StateManager(cell, batches)
    manager.restore(state)
    epoch = None
    for x, y in batches:
        if epoch is not None and batches.epoch != epoch:
            manager.fence()
            pull()
        epoch = batches.epoch
        cell(x, y)
        add()
        manager.step(state)
    manager.save_final(state)
os._exit(0)
