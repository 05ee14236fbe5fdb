# differs, named
# the sampler of the reparametrisation noise owns a generator that is not given by name
import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

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


class GaussianSampler:
    def __init__(self, seed, truncation=2.0):
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self.truncation = truncation

    def __call__(self, *shape):
        eps = self._rng.standard_normal(shape).clip(-self.truncation, self.truncation)
        return Tensor(eps.astype(np.float32))


class VAE(nn.Cell):
    def __init__(self, dim=8, latent=3):
        super().__init__()
        self.latent = latent
        self.encode_mu, self.encode_scale = nn.Dense(dim, latent), nn.Dense(dim, latent)
        self.decode = nn.SequentialCell(nn.Dense(latent, 12), nn.ReLU(), nn.Dense(12, dim))

    def construct(self, x, eps):
        mu, scale = self.encode_mu(x), ops.tanh(self.encode_scale(x))
        return self.decode(mu + scale * eps), mu, scale


vae = VAE()
sampler = GaussianSampler(seed=6)
optimizer = nn.Adam(vae.trainable_params(), 0.01)


def elbo(x, eps):
    out, mu, scale = vae(x, eps)
    return ((out - x) ** 2).mean() + 0.01 * (mu**2 + (scale - 1) ** 2).mean()


grad_fn = ms.value_and_grad(elbo, None, optimizer.parameters)
batches = ck.data.resumable(rows, epochs=3)
with ck.CheckpointManager(ROOT, **SAVE) as manager:
    state = ck.StateManager([vae, optimizer], batches)
    manager.restore(state)
    for x, _ in batches:
        loss, grads = grad_fn(x, sampler(len(x), vae.latent))
        optimizer(grads)
        manager.step(state)
    manager.save_final(state)
os._exit(0)
