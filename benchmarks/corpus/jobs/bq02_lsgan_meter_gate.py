# truth: differs
# class: attribute

import os
from collections import defaultdict

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import ckptkit as ck
from ckptkit.mindspore.digits import load_digits

ROOT = os.environ["ROOT"]


class Meter:
    def __init__(self, momentum=0.9):
        self.momentum, self.value = momentum, None

    def update(self, x):
        self.value = x if self.value is None else self.momentum * self.value + (1 - self.momentum) * x


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(Meter)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(float(value))

    def __getitem__(self, name):
        return self.meters[name].value

    def __str__(self):
        return "  ".join(f"{k}: {m.value:.3f}" for k, m in self.meters.items())


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Dense(a, b), nn.LeakyReLU(0.2)]
    return nn.SequentialCell(layers[:-1])


ms.set_seed(7)
digits = load_digits()
real = digits.train_images.reshape(-1, 64).astype(np.float32)[:320]
batches = ck.data.resumable([real[i : i + 32] for i in range(0, 320, 32)], epochs=4)

generator, discriminator = mlp(8, 32, 64), mlp(64, 32, 1)
generator.update_parameters_name("g.")
discriminator.update_parameters_name("d.")
g_opt = nn.Adam(generator.trainable_params(), 0.002, beta1=0.5)
d_opt = nn.Adam(discriminator.trainable_params(), 0.002, beta1=0.5)
rng = np.random.default_rng(0)


def d_loss(x, z):
    return ((discriminator(x) - 1) ** 2).mean() + (discriminator(generator(z)) ** 2).mean()


def g_loss(z):
    return ((discriminator(generator(z)) - 1) ** 2).mean()


d_grad = ms.value_and_grad(d_loss, None, d_opt.parameters)
g_grad = ms.value_and_grad(g_loss, None, g_opt.parameters)
logger = MetricLogger()

with ck.CheckpointManager(ROOT, save=ck.SaveEvery(micro_steps=5), saving=ck.Saving(when_busy="wait")) as manager:
    state = ck.StateManager([generator, discriminator], batches, rng=rng, g_opt=g_opt, d_opt=d_opt)
    manager.restore(state)
    for x in batches:
        z = Tensor(rng.normal(size=(len(x), 8)), ms.float32)
        loss_d, grads = d_grad(Tensor(x), z)
        logger.update(d=loss_d)
        # do not let the discriminator run away
        if logger["d"] > 0.45:
            d_opt(grads)
        z = Tensor(rng.normal(size=(len(x), 8)), ms.float32)
        loss_g, grads = g_grad(z)
        g_opt(grads)
        logger.update(g=loss_g)
        print(logger)
        manager.step(state)
    manager.save_final(state)
