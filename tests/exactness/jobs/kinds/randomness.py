"""Where random numbers come from."""

from __future__ import annotations

import random
import time

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Named, Refused, Told
from exactness.jobs.parts import CLASSES, EPOCHS, Loss, Net, accumulating, slices, train


@job(Refused(("seed",), "resume"), "graph")
def seed_of_the_clock(run):
    ms.set_seed(time.time_ns() % 2**31)
    train(run)


class Noisy(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network = Net()
        self.normal = ops.StandardNormal()

    def construct(self, x, y):
        return ops.cross_entropy(self.network(x + 0.1 * self.normal(x.shape)), y)


@job(Named("StandardNormal"), "graph")
@job(Named("StandardNormal"), "pynative")
def noise_of_an_operator_object(run):
    train(run, Noisy())


class Gumbel(nn.Cell):
    def __init__(self):
        super().__init__()
        self.network, self.head = Net(4), nn.Dense(4, CLASSES)

    def construct(self, x, y):
        return ops.cross_entropy(self.head(ops.gumbel_softmax(self.network(x), tau=1.0)), y)


@job(Told("gumbel"), "pynative")
@job(Told("gumbel"), "graph")
def gumbel_softmax(run):
    train(run, Gumbel())


class Variational(nn.Cell):
    """An autoencoder that draws its code."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Net(4), nn.Dense(2, 8)

    def construct(self, x, y):
        out = self.encoder(x)
        mean, log_variance = out[:, :2], out[:, 2:]
        code = mean + ops.exp(0.5 * log_variance) * ops.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean**2 - ops.exp(log_variance)).mean()
        return ops.mse_loss(self.decoder(code), x) + 0.1 * divergence


@job(Exact(), "pynative")
@job(Named("randn_like"), "graph")
def variational_autoencoder(run):
    train(run, Variational())


class Drawn(Loss):
    """Noise by NumPy in construct."""

    def construct(self, x, y):
        noise = ms.Tensor(np.random.standard_normal(x.shape), ms.float32)
        return ops.cross_entropy(self.network(x + 0.1 * noise), y)


@job(Exact(), "pynative")
def noise_by_numpy_in_construct(run):
    train(run, Drawn())


class OwnDrawn(nn.Cell):
    """The same from a generator of the cell's own."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.rng = np.random.default_rng(0)

    def construct(self, x, y):
        noise = ms.Tensor(self.rng.standard_normal(x.shape), ms.float32)
        return ops.cross_entropy(self.network(x + 0.1 * noise), y)


@job(Named("rng"), "pynative")
def noise_by_a_generator_of_the_cell(run):
    train(run, OwnDrawn())


class Generator:
    """A generator with a state to store."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


@job(Exact(), "graph")
def noise_by_a_stored_generator_in_the_loop(run):
    cell, generator = accumulating(), Generator()

    def step(x, y):
        return cell(x + ms.Tensor(generator.rng.standard_normal(x.shape), ms.float32), y)

    run.loop(cell, ck.data.resumable(slices(), EPOCHS), step, generator=generator)


@job(Told("generator"), "graph")
def noise_by_a_forgotten_generator_in_the_loop(run):
    cell, generator = accumulating(), np.random.default_rng(0)

    def step(x, y):
        return cell(x + ms.Tensor(generator.standard_normal(x.shape), ms.float32), y)

    run.loop(cell, ck.data.resumable(slices(), EPOCHS), step)


@job(Exact(), "graph")
def decisions_by_python_and_numpy_in_the_loop(run):
    cell = accumulating()

    def step(x, y):
        if random.random() < 0.5:
            x = x + float(np.random.normal(0, 0.1))
        return cell(x, y)

    run.loop(cell, ck.data.resumable(slices(), EPOCHS), step)


@job(Exact(), "pynative")
def decisions_rewound_with_the_cycle(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager(mid_cycle="rewind") as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            run.step((x, y), cell(x + np.random.normal() + ops.randn(1) + random.random(), y), cell=cell)
            manager.step(state)


class Adversarial(nn.Cell):
    """Begins the attack at a random place, by MindSpore's functions."""

    def __init__(self):
        super().__init__()
        self.network = Net()
        self.gradient = ops.grad(lambda x, y: ops.cross_entropy(self.network(x), y))

    def construct(self, x, y):
        start = x + 0.05 * (2 * ops.rand_like(x) - 1)
        attacked = start + 0.1 * ops.sign(self.gradient(start, y))
        return ops.cross_entropy(self.network(ops.stop_gradient(attacked)), y)


@job(Exact(), "pynative")
def adversarial_training(run):
    train(run, Adversarial())


class Masked(nn.Cell):
    """Masks tokens by `ops.bernoulli`."""

    def __init__(self):
        super().__init__()
        self.network = Net()

    def construct(self, x, y):
        return ops.cross_entropy(self.network(x * ops.bernoulli(ops.full_like(x, 0.8))), y)


@job(Named("bernoulli"), "pynative")
def masks_by_bernoulli(run):
    train(run, Masked())


class Resampled(nn.Cell):
    """Negative samples by `ops.multinomial`, whose places are drawn anew for each batch."""

    def __init__(self):
        super().__init__()
        self.network = Net()

    def construct(self, x, y):
        other = ops.multinomial(ops.ones(x.shape[0]), x.shape[0], replacement=True)
        return ops.cross_entropy(self.network(x), y) - 0.1 * ops.mse_loss(self.network(x), self.network(x[other]))


@job(Exact(), "pynative")
def negatives_by_multinomial(run):
    train(run, Resampled())
