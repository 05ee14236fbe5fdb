"""Arrays, lists and objects that a loop changes by calls and operators."""

from __future__ import annotations

import bisect
import math
import typing

import mindspore as ms
import numpy as np

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Told
from exactness.jobs.parts import (
    CLASSES,
    EPOCHS,
    accumulating,
    looped,
    rate_of,
    slices,
)


@job(Told("counts"), "graph")
def classes_counted_by_a_ufunc(run):
    counts = np.ones(CLASSES, np.float32)

    def step(cell, at, x, y):
        np.add.at(counts, y.asnumpy(), 1)
        scale = (counts.sum() / counts)[y.asnumpy()]
        return cell(x * ms.Tensor(scale[:, None] / 3, ms.float32), y)

    looped(run, step)


@job(Told("losses"), "graph")
def median_by_bisect(run):
    losses = []

    def step(cell, at, x, y):
        loss = cell(x if not losses else x * losses[len(losses) // 2], y)
        bisect.insort(losses, float(loss))
        return loss

    looped(run, step)


class Holder:
    pass


@job(Told("held"), "graph")
def attribute_set_by_its_name(run):
    held = Holder()
    held.best = math.inf

    def step(cell, at, x, y):
        loss = cell(x * min(getattr(held, "best"), 1.0), y)  # noqa: B009 - what is to be read
        setattr(held, "best", min(held.best, float(loss)))  # noqa: B010 - what is to be read
        return loss

    looped(run, step)


@job(Told("held"), "graph")
def attributes_updated_by_vars(run):
    held = Holder()
    held.best = 5.0

    def step(cell, at, x, y):
        loss = cell(x * min(held.best, 1.0), y)
        vars(held).update(best=min(held.best, float(loss)))
        return loss

    looped(run, step)


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def __iadd__(self, value):
        self.sum, self.count = self.sum + value, self.count + 1
        return self

    @property
    def mean(self):
        return self.sum / max(self.count, 1)


@job(Told("meter"), "graph")
def meter_with_an_operator(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    meter = Meter()
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            meter += float(loss)
            if float(loss) > meter.mean:
                rate_of(cell).set_data(rate_of(cell) * 0.9)
            run.step((x, y), loss, cell=cell)
            manager.step(state)


class TrainState(typing.NamedTuple):
    step: int
    scale: float


@job(Told("ts"), "graph")
def named_tuple_replaced_as_in_jax(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    ts = TrainState(0, 1.0)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x * ts.scale, y)
            ts = ts._replace(step=ts.step + 1, scale=1 / (1 + ts.step))
            run.step((x, y), loss, cell=cell)
            manager.step(state)


DRAWER = np.random.default_rng(7)


def mixed(x, y, info):
    share = DRAWER.beta(0.4, 0.4)
    return [share * one + (1 - share) * other for one, other in zip(x, x[::-1], strict=True)], y


class Replay:
    def __init__(self):
        self._rows = []

    def add(self, one):
        self._rows.append(one)
        del self._rows[:-3]

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


@job(Told("replay"), "graph")
def replay_read_by_its_index(run):
    replay = Replay()

    def step(cell, at, x, y):
        mixed = x if len(replay) == 0 else 0.5 * x + 0.5 * ms.Tensor(replay[0])
        replay.add(x.asnumpy())
        return cell(mixed, y)

    looped(run, step)


class Ema:
    def __init__(self):
        self._value = 1.0

    def update(self, value):
        self._value = 0.9 * self._value + 0.1 * value

    def __float__(self):
        return self._value

    def __lt__(self, other):
        return self._value < other


@job(Told("ema"), "graph")
def average_read_by_float(run):
    ema = Ema()

    def step(cell, at, x, y):
        loss = cell(x * float(ema), y)
        ema.update(float(loss))
        return loss

    looped(run, step)


@job(Told("kept"), "graph")
def arrays_loaded_in_mid_run(run):
    """The same with arrays in a dictionary."""
    cell = accumulating()
    kept = {}

    def step(cell, at, x, y):
        loss = cell(x, y)
        if at == 4:
            for p in cell.network.get_parameters():
                kept[p.name] = p.asnumpy().copy()
        if at == 13:
            ms.load_param_into_net(cell.network, {n: ms.Parameter(a, name=n) for n, a in kept.items()})
        return loss

    looped(run, step, cell)


@job(Told("average"), "graph")
def array_filled_in_place(run):
    average = np.ones(1, np.float32)

    def step(cell, at, x, y):
        loss = cell(x * float(average[0]), y)
        average.fill(0.9 * average[0] + 0.1 * float(loss))
        return loss

    looped(run, step)
