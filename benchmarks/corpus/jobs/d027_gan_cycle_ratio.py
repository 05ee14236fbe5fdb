# truth: differs
# class: iterator
# itertools.cycle decides whose turn it is; its position is in no checkpoint

import itertools
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(1)


def make_batches(seed, n=8, size=8, dim=8):
    rng = np.random.default_rng(seed)
    for x in rng.normal(size=(n, size, dim)):
        y = np.tanh(x[:, :3].sum(1, keepdims=True)) + 0.1 * rng.normal(size=(size, 1))
        yield Tensor(x, ms.float32), Tensor(y, ms.float32)


rows = list(make_batches(11))

LATENT = 4


def build(prefix, n_in, n_out):
    cell = nn.SequentialCell(nn.Dense(n_in, 12), nn.ReLU(), nn.Dense(12, n_out))
    cell.update_parameters_name(prefix)
    return cell, nn.Adam(cell.trainable_params(), 0.01, beta1=0.5)


gen, opt_g = build("gen.", LATENT, 8)
disc, opt_d = build("disc.", 8, 1)


def d_loss(real, z):
    return ((disc(real) - 1) ** 2).mean() + (disc(gen(z)) ** 2).mean()


def g_loss(z):
    return ((disc(gen(z)) - 1) ** 2).mean()


d_grad = ms.value_and_grad(d_loss, None, opt_d.parameters)
g_grad = ms.value_and_grad(g_loss, None, opt_g.parameters)
turns = itertools.cycle("DDDG")


def noise(n):
    return Tensor(np.random.normal(size=(n, LATENT)).astype(np.float32))


batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([gen, disc, opt_g], batches, opt_d=opt_d)
    manager.restore(state)
    for real, _ in batches:
        z = noise(len(real))
        if next(turns) == "D":
            loss, grads = d_grad(real, z)
            opt_d(grads)
        else:
            loss, grads = g_grad(z)
            opt_g(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
