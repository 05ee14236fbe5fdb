# truth: differs
# class: random

import os
import copy
import mindspore as ms, numpy as np, mindspore.dataset as ds
from mindspore import nn, ops, Tensor, Parameter
import ckptkit as ck

ROOT = os.environ["ROOT"]
SAVE = dict(save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait"))
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(3)
rng0 = np.random.default_rng(8)
REAL = rng0.normal(1.0, 0.3, size=(80, 2)).astype(np.float32)
loader = [Tensor(REAL[i : i + 8]) for i in range(0, 80, 8)]
G = nn.SequentialCell(nn.Dense(3, 8), nn.ReLU(), nn.Dense(8, 2))
D = nn.SequentialCell(nn.Dense(2, 8), nn.LeakyReLU(), nn.Dense(8, 1))
G.update_parameters_name("g.")
D.update_parameters_name("d.")
opt_g, opt_d = nn.Adam(G.trainable_params(), 2e-3, beta1=0.5), nn.Adam(D.trainable_params(), 2e-3, beta1=0.5)
noise = np.random.default_rng(15)


def z(n=8):
    return Tensor(noise.normal(size=(n, 3)).astype(np.float32))


G_ema = copy.deepcopy(G)
for p in G_ema.get_parameters():
    p.requires_grad = False


def accumulate(dst, src, decay=0.9):
    for a, b in zip(dst.get_parameters(), src.get_parameters()):
        ops.assign(a, a * decay + b * (1 - decay))


def d_loss(real, fake):
    return (ops.relu(1 - D(real)) + ops.relu(1 + D(fake))).mean()


def g_loss(noise, target):
    fake = G(noise)
    return -D(fake).mean() + 0.5 * ((fake - target) ** 2).mean()


d_grad = ms.value_and_grad(d_loss, None, opt_d.parameters)
g_grad = ms.value_and_grad(g_loss, None, opt_g.parameters)
batches = ck.data.resumable(loader, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([G, D, opt_g], batches, opt_d=opt_d, noise=noise)
    manager.restore(state)
    for real in batches:
        latent = z()
        _, grads = d_grad(real, ops.stop_gradient(G(latent)))
        opt_d(grads)
        _, grads = g_grad(latent, G_ema(latent))
        opt_g(grads)
        accumulate(G_ema, G)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
