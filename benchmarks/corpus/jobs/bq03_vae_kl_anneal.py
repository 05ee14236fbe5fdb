# truth: exact
# class: random

import os

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

ROOT = os.environ["ROOT"]
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(11)


class VAE(nn.Cell):
    def __init__(self, latent=4):
        super().__init__()
        self.encoder = nn.SequentialCell(nn.Dense(64, 24), nn.Tanh())
        self.mu, self.logvar = nn.Dense(24, latent), nn.Dense(24, latent)
        self.decoder = nn.SequentialCell(nn.Dense(latent, 24), nn.Tanh(), nn.Dense(24, 64))

    def construct(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + ops.exp(0.5 * logvar) * ops.standard_normal(mu.shape)
        return self.decoder(z), mu, logvar


def kl_weight(step, warmup=20):
    return min(1.0, step / warmup)


images = load_digits().train_images.reshape(-1, 64).astype(np.float32)[:256]
net = VAE()
opt = nn.Adam(net.trainable_params(), 5e-3)


def loss_fn(x, beta):
    recon, mu, logvar = net(x)
    kld = -0.5 * (1 + logvar - mu**2 - ops.exp(logvar)).sum(-1).mean()
    return ((recon - x) ** 2).sum(-1).mean() + beta * kld, kld


grad_fn = ms.value_and_grad(loss_fn, None, opt.parameters, has_aux=True)
history = {"loss": [], "kld": []}
run = ck.loop(
    ROOT,
    [Tensor(images[i:i + 32]) for i in range(0, 256, 32)],
    epochs=4,
    train=[net, opt],
    save=ck.SaveEvery(micro_steps=5),
    saving=ck.Saving(when_busy="wait"),
)
for x in run:
    step = run.step
    (loss, kld), grads = grad_fn(x, kl_weight(step))
    opt(ops.clip_by_global_norm(grads, 5.0))
    history["loss"].append(float(loss))
    history["kld"].append(float(kld))
print("mean of the last losses", np.mean(history["loss"][-8:]))
os._exit(0)
