"""What a loop counts, zips with batches or takes from what was restored begins anew with each start, and is named."""

# ruff: noqa: B905, UP028, C417, RUF015 - loops as people write them

from __future__ import annotations

import itertools

import pytest
from mindspore import ops
from test_loop_begun import check_refused


def enum_tqdmlike(cell, batches, rate, restore):
    def bar(it):
        for v in it:
            yield v

    restore()
    for n, (x, y) in enumerate(bar(batches)):
        cell(x * n, y)


def enum_of_wrapper(cell, batches, rate, restore):
    class Bar:
        def __init__(self, it):
            self.it = it

        def __iter__(self):
            return iter(self.it)

    restore()
    for n, (x, y) in enumerate(Bar(batches)):
        cell(x * n, y)


def enum_tqdm(cell, batches, rate, restore):
    from tqdm import tqdm

    restore()
    for n, (x, y) in enumerate(tqdm(batches, disable=True)):
        cell(x * n, y)


def tqdm_enum(cell, batches, rate, restore):
    from tqdm import tqdm

    restore()
    for n, (x, y) in tqdm(enumerate(batches), disable=True):
        cell(x * n, y)


def enum_iter(cell, batches, rate, restore):
    restore()
    for n, (x, y) in enumerate(iter(batches)):
        cell(x * n, y)


def enum_map(cell, batches, rate, restore):
    restore()
    for n, (x, y) in enumerate(map(lambda b: b, batches)):
        cell(x * n, y)


def enum_genexp(cell, batches, rate, restore):
    restore()
    for n, (x, y) in enumerate((x * 2, y) for x, y in batches):
        cell(x * n, y)


def enum_start_var(cell, batches, rate, restore):
    first = 1
    restore()
    for n, (x, y) in enumerate(batches, first):
        cell(x * n, y)


def islice_iter(cell, batches, rate, restore):
    restore()
    it = iter(batches)
    for x, y in itertools.islice(it, 100):
        cell(x, y)


def zip_accumulate(cell, batches, rate, restore):
    restore()
    for (x, y), s in zip(batches, itertools.accumulate(itertools.repeat(0.9), lambda a, b: a * b)):
        cell(x * s, y)


def enum_zip_anew(cell, batches, rate, restore):
    other = [1.0] * 100
    restore()
    for n, ((x, y), s) in enumerate(zip(batches, other)):
        cell(x * s * n, y)


def snap_params(cell, batches, rate, restore):
    snap = None
    restore()
    for x, y in batches:
        if snap is None:
            snap = [p.asnumpy().copy() for p in cell.network.trainable_params()]
        cell(x + float(snap[0].mean()), y)


def snap_dict(cell, batches, rate, restore):
    snap = {}
    restore()
    for x, y in batches:
        for p in cell.network.trainable_params():
            if p.name not in snap:
                snap[p.name] = p.asnumpy().copy()
        cell(x + float(list(snap.values())[0].mean()), y)


def snap_rate_before(cell, batches, rate, restore):
    restore()
    base = float(rate)
    for x, y in batches:
        ops.assign(rate, rate * 0.9 + base * 0.05)
        cell(x, y)


def snap_before(cell, batches, rate, restore):
    restore()
    a = [p.asnumpy().copy() for p in cell.network.trainable_params()]
    for x, y in batches:
        cell(x + float(a[0].mean()), y)


def or_position(cell, batches, rate, restore):
    t = None
    point = restore()
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        if t is None or n % 5 == 0:
            t = 1.0 / (n + 1)
        cell(x * t, y)


def zip_list_b(cell, batches, rate, restore):
    lrs = [0.1] * 100
    restore()
    for (x, y), lr in zip(batches, lrs):
        cell(x * lr, y)


def zip_cycle(cell, batches, rate, restore):
    restore()
    for (x, y), k in zip(batches, itertools.cycle([1.0, 2.0])):
        cell(x * k, y)


@pytest.mark.parametrize(
    "loop",
    [
        enum_tqdmlike,
        enum_of_wrapper,
        enum_tqdm,
        tqdm_enum,
        enum_iter,
        enum_map,
        enum_genexp,
        enum_start_var,
        islice_iter,
        zip_accumulate,
        enum_zip_anew,
        snap_params,
        snap_dict,
        snap_rate_before,
        snap_before,
        or_position,
        zip_list_b,
        zip_cycle,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)
