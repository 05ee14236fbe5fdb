# truth: exact
# class: variable
# Co-teaching with noisy labels: each network picks the small-loss samples for the other; the forget rate follows the epoch.

import os
from itertools import islice

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck

ms.set_seed(24)
FORGET = {0: 0.0, 1: 0.25, 2: 0.5}


def new_net(prefix):
    net = nn.SequentialCell(nn.Dense(8, 8), nn.ReLU(), nn.Dense(8, 2))
    net.update_parameters_name(prefix)
    return net


nets = [new_net("a."), new_net("b.")]
opts = [nn.Adam(net.trainable_params(), learning_rate=0.02) for net in nets]


def make_step(net):
    return ms.value_and_grad(lambda x, y: ops.cross_entropy(net(x), y), None, net.trainable_params())


steps = [make_step(net) for net in nets]


def small_loss(net, x, y, keep):
    losses = ops.cross_entropy(net(ms.Tensor(x)), ms.Tensor(y), reduction="none").asnumpy()
    return np.argsort(losses, kind="stable")[:keep]


gen = np.random.default_rng(5)
x_all = gen.normal(size=(64, 8)).astype(np.float32)
y_all = (x_all[:, 0] > 0).astype(np.int32)
flip = gen.random(64) < 0.3
y_all = np.where(flip, 1 - y_all, y_all).astype(np.int32)
loader = [(x_all[i : i + 8], y_all[i : i + 8]) for i in range(0, 64, 8)]
batches = ck.data.resumable(loader, epochs=3)

with ck.CheckpointManager(
    os.environ["ROOT"], save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")
) as manager:
    state = ck.StateManager([nets[0], nets[1], opts[0]], batches, second_optimizer=opts[1])
    manager.restore(state)
    for x, y in batches:
        manager.fence()
        keep = int(len(x) * (1 - FORGET[batches.epoch]))
        picks = [small_loss(net, x, y, keep) for net in nets]
        for step, opt, pick in zip(steps, opts, reversed(picks)):
            loss, grads = step(ms.Tensor(x[pick]), ms.Tensor(y[pick]))
            opt(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
