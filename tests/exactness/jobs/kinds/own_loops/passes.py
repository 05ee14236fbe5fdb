"""Ways to go through the batches, other than a plain `for`."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import mindspore as ms
from mindspore import ops

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused, Told
from exactness.jobs.parts import (
    EPOCHS,
    Loss,
    accumulating,
    adam,
    looped,
    rate_of,
    rows,
    slices,
)


@job(Told("best"), "graph")
def batches_gone_through_by_map(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    best = math.inf
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))

        def one(batch):
            nonlocal best
            x, y = batch
            loss = cell(x / (1 + best) if best < 9 else x, y)
            best = min(best, float(loss))
            run.step((x, y), loss, cell=cell)
            manager.step(state)
            return float(loss)

        list(map(one, batches))


@job(Told("islice"), "graph")
def budget_by_islice(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in itertools.islice(batches, 14):
            run.step((x, y), cell(x, y), cell=cell)
            manager.step(state)


@job(Exact(), "pynative")
def walrus_and_next(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        it = iter(batches)
        while (batch := next(it, None)) is not None:
            run.step(batch, cell(*batch), cell=cell)
            manager.step(state)


@job(Refused(("batches.epoch",), after=16), "graph")
def rate_by_the_variable_of_an_outer_loop(run):
    """The loop over the epochs is kept as it was before ckptkit came."""
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for epoch in range(EPOCHS):
            rate_of(cell).set_data(ms.Tensor(0.02 / (1 + epoch), ms.float32))
            for x, y in batches:
                run.step((x, y), cell(x, y), cell=cell)
                manager.step(state)


@job(Told("resumable() were taken"), "pynative")
def micro_batches_in_chunks(run):
    """Three batches are gathered, and then trained by one update."""
    loss = Loss().set_train()
    optimizer = adam(loss)
    grad = ms.value_and_grad(loss, None, optimizer.parameters)
    batches = ck.data.resumable(slices(), 3)
    with run.manager() as manager:
        state = ck.StateManager([loss, optimizer], batches)
        point = manager.restore(state)
        run.begin(dataclasses.replace(point, batches_delivered=point.batches_delivered // 2))
        it = iter(batches)
        while chunk := list(itertools.islice(it, 2)):
            parts = [grad(x, y) for x, y in chunk]
            optimizer(tuple(sum(one) / len(parts) for one in zip(*(grads for _, grads in parts), strict=True)))
            run.step(chunk, [value for value, _ in parts], cell=loss, optimizer=optimizer)
            manager.step(state)


def with_last(iterable):
    """Also says whether it is the last."""
    it = iter(iterable)
    before = next(it)
    for one in it:
        yield before, False
        before = one
    yield before, True


@job(Told("read ahead"), "graph")
def looked_one_batch_ahead(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for (x, y), last in with_last(batches):
            run.step((x, y), cell(x, y), cell=cell)
            if last:
                print("last")
            manager.step(state)


def trained(batches, cell):
    for x, y in batches:
        yield (x, y), cell(x, y)


@job(Told("factor"), "graph")
def training_in_a_generator_and_state_outside(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    factor = 1.0
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for batch, loss in trained(batches, cell):
            run.step(batch, loss, cell=cell)
            factor *= 0.9 if float(loss) < 1.2 else 1.1
            rate_of(cell).set_data(ms.Tensor(0.01 * factor, ms.float32))
            manager.step(state)


class SelfIterating:
    """Is its own iterator, and begins anew by itself."""

    def __init__(self):
        self.at, self.rows = 0, rows()

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at == len(self.rows):
            raise StopIteration
        self.at += 1
        return self.rows[self.at - 1]


@job(Exact(), "graph")
def loader_that_is_its_own_iterator(run):
    looped(run, lambda cell, at, x, y: cell(x, y), data=SelfIterating())


@job(Told("best_state"), "pynative")
def best_weights_put_back_at_the_end(run):
    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    best, best_state = math.inf, None
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            if float(loss) < best - 0.5:
                best, best_state = float(loss), copy.deepcopy([p.asnumpy() for p in cell.network.get_parameters()])
            run.step((x, y), loss, cell=cell)
            manager.step(state)
        for p, kept in zip(cell.network.get_parameters(), best_state, strict=True):
            ops.assign(p, ms.Tensor(kept))
        run.step((), 0, cell=cell)


@job(Told("bad"), "graph")
def script_left_when_patience_is_out(run):
    import sys

    cell = accumulating()
    batches = ck.data.resumable(slices(), EPOCHS)
    bad = 0
    with run.manager() as manager:
        state = ck.StateManager(cell, batches)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = cell(x, y)
            bad = bad + 1 if float(loss) > 0.1 else 0
            run.step((x, y), loss, cell=cell)
            manager.step(state)
            if bad == 14:
                sys.exit(0)
