"""Loops that call libraries: their own code is not the user's."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Told
from exactness.jobs.parts import (
    EPOCHS,
    Net,
    adam,
    looped,
    slices,
)

# Why a job is not as it should be.
FALSE_ALARM = "warned of although it is exact"


@job(Exact(), "pynative", differs=FALSE_ALARM)
def teacher_from_a_file(run):
    """Frozen, and the same at each start."""
    path = run.folder / "teacher.ckpt"
    if not path.exists():
        ms.save_checkpoint(Net(), str(path))
    teacher = Net()
    ms.load_param_into_net(teacher, ms.load_checkpoint(str(path)))
    ms.set_seed(1)
    teacher.set_train(False)
    for parameter in teacher.get_parameters():
        parameter.requires_grad = False
    network = Net().set_train()
    optimizer = adam(network)

    def forward(x, y):
        out = network(x)
        return ops.cross_entropy(out, y) + ops.mse_loss(out, ops.stop_gradient(teacher(x)))

    grad = ms.value_and_grad(forward, None, optimizer.parameters)
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager([network, optimizer], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            value, grads = grad(x, y)
            optimizer(grads)
            run.step((x, y), value, network=network, optimizer=optimizer)
            manager.step(state)


@job(Told("rng"), "graph")
def generator_passed_to_scipy(run):
    from scipy import stats

    rng = np.random.default_rng(0)

    def step(cell, at, x, y):
        share = float(stats.beta.rvs(0.4, 0.4, random_state=rng))
        return cell(share * x + (1 - share) * x[::-1] if False else share * x, y)

    looped(run, step)


@job(Exact(), "graph")
def mixup_by_scipy_from_numpys_global_generator(run):
    from scipy import stats

    def step(cell, at, x, y):
        share = float(stats.beta.rvs(0.4, 0.4))
        return cell(ms.Tensor(share * x.asnumpy() + (1 - share) * x.asnumpy()[::-1]), y)

    looped(run, step)


@job(Exact(), "pynative")
def smoothed_by_scipy(run):
    """A library that is nobody's: only functions of the input."""
    from scipy import ndimage

    looped(run, lambda cell, at, x, y: cell(ms.Tensor(ndimage.gaussian_filter1d(x.asnumpy(), 0.5)), y))
