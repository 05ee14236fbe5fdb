"""What a loop decides by, and calls: phases, functions, objects, decorators."""

from __future__ import annotations

import concurrent.futures
import enum
import functools
import math
import threading

import mindspore as ms
import numpy as np
from mindspore import ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Told
from exactness.jobs.parts import (
    EPOCHS,
    Loss,
    Net,
    accumulating,
    adam,
    looped,
    rate_of,
    slices,
)


@job(Told("pending"), "graph")
def evaluation_in_a_pool_whose_result_comes_later(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    pending = None
    with run.manager() as manager, concurrent.futures.ThreadPoolExecutor(1) as pool:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            scale = pending.result() if pending is not None else 1.0
            loss = cell(x * scale, y)
            pending = pool.submit(lambda array: float(np.abs(array).mean()), x.asnumpy())
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Told("latest"), "graph")
def scale_written_by_a_thread(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    latest = {"scale": 1.0}

    def measure(array):
        latest["scale"] = float(np.abs(array).mean())

    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x * latest["scale"], y)
            thread = threading.Thread(target=measure, args=(x.asnumpy(),))
            thread.start()
            thread.join()
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@functools.cache
def generator(seed):
    return np.random.default_rng(seed)


@job(Told("generator"), "graph")
def generator_out_of_a_cached_factory(run):
    looped(run, lambda cell, at, x, y: cell(x + ms.Tensor(generator(4).normal(size=x.shape), ms.float32), y))


class Plan:
    def __init__(self):
        self.k = 2


@job(Told("plan"), "graph")
@job(Told("plan"), "pynative")
def k_of_a_plan_that_the_loop_changes(run):
    plan, loss = Plan(), Loss()
    cell = ck.AccumulationTrainCell(loss, adam(loss), lambda updates: plan.k).set_train()

    def step(cell, at, x, y):
        if at == 5:
            plan.k = 4
        return cell(x, y)

    looped(run, step, cell)


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


@job(Told("phase"), "graph")
def phase_in_an_enumeration(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    phase = Phase.WARM
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            match phase:
                case Phase.WARM:
                    loss = cell(x * 0.5, y)
                    if float(loss) < 1.2:
                        phase = Phase.MAIN
                case Phase.MAIN:
                    loss = cell(x, y)
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Told("loss_fn"), "pynative")
def loss_function_exchanged_when_it_is_low(run):
    network = Net().set_train()
    optimizer = adam(network)

    def plain(out, y):
        return ops.cross_entropy(out, y)

    def focal(out, y):
        return (ops.cross_entropy(out, y, reduction="none") ** 2).mean()

    loss_fn = plain
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager([network, optimizer], batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            forward = lambda x, y: loss_fn(network(x), y)  # noqa: B023, E731 - what is to be read
            value, grads = ms.value_and_grad(forward, None, optimizer.parameters)(x, y)
            optimizer(grads)
            if float(value) < 1.1:
                loss_fn = focal
            run.step((x, y), value, network=network, optimizer=optimizer)
            manager.step(state)


class Event(list):
    """Calls what was put into it."""

    def __call__(self, *args):
        for one in self:
            one(*args)


class Halver:
    def __init__(self, cell):
        self.cell, self.seen = cell, []

    def __call__(self, loss):
        self.seen.append(float(loss))
        if len(self.seen) == 4:
            rate_of(self.cell).set_data(ms.Tensor(float(np.mean(self.seen)) / 100, ms.float32))
            self.seen.clear()


@job(Told("seen"), "graph")
def rate_by_an_event_handler(run):
    cell = accumulating()
    after_step = Event([Halver(cell)])
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            after_step(loss)
            run.step((x, y), loss, cell=cell)
            manager.step(state)


def every(times):
    def decorate(function):
        calls = 0

        def called(*args):
            nonlocal calls
            calls += 1
            if calls % times == 0:
                function(*args)

        return called

    return decorate


@job(Told("calls"), "graph")
def decorated_to_be_called_every_fifth_time(run):
    cell = accumulating()

    @every(5)
    def decay():
        rate_of(cell).set_data(rate_of(cell) * 0.5)

    def step(cell, at, x, y):
        decay()
        return cell(x, y)

    looped(run, step, cell)


class Rates:
    """An iterator of one's own."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return 0.03 / self.at


@job(Told("rates"), "graph")
def rates_of_an_iterator_of_ones_own(run):
    rates = Rates()

    def step(cell, at, x, y):
        rate_of(cell).set_data(ms.Tensor(next(rates), ms.float32))
        return cell(x, y)

    looped(run, step)


class Plateau:
    """As it is in many a utils.py."""

    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, math.inf, 0

    def step(self, value):
        if value < self.best - 0.3:
            self.best, self.bad = value, 0
            return False
        self.bad += 1
        if self.bad == self.patience:
            self.bad = 0
            return True
        return False


@job(Told("bad"), "pynative")
def object_made_between_restore_and_loop(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        plateau = Plateau(patience=5)
        for x, y in batches:
            loss = cell(x, y)
            if plateau.step(float(loss)):
                ops.assign(rate_of(cell), rate_of(cell) * 0.5)
            run.step((x, y), loss, cell=cell)
            manager.step(state)


@job(Told("rng"), "graph")
def generator_made_between_restore_and_loop(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        rng = np.random.default_rng(0)
        for x, y in batches:
            loss = cell(x + ms.Tensor(rng.normal(size=x.shape), ms.float32), y)
            run.step((x, y), loss, cell=cell)
            manager.step(state)
