"""Objects that a loop makes itself, and lambdas that it gives away, are followed."""

# ruff: noqa: B007, B905, PLW0108 - loops as people write them

from __future__ import annotations

import itertools

import pytest
from test_loop_begun import check_refused

COUNT = {"n": 0}


class Aug:
    made = 0

    def __init__(self, s):
        self.s = s

    def __call__(self, x):
        COUNT["n"] += 1
        return x / COUNT["n"]

    def apply(self, x):
        Aug.made += 1
        return x / Aug.made


def fresh_var(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        a = Aug(1)
        cell(a(x), y)


def fresh_var_method(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        a = Aug(1)
        cell(a.apply(x), y)


def fresh_inline(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(Aug(1)(x), y)


class Batch:
    ids = itertools.count(1)

    def __init__(self, x):
        self.id = next(Batch.ids)
        self.x = x


def fresh_ctor(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        b = Batch(x)
        cell(b.x / b.id, y)


class Tm:
    n = 0

    def __enter__(self):
        Tm.n += 1

    def __exit__(self, *a):
        pass


def with_fresh(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        with Tm():
            cell(x / (1 + Tm.n), y)


def pass_lambda(cell, batches, rate, restore):
    n = [0]

    def run(f):
        return f()

    def bump():
        n[0] += 1
        return n[0]

    restore()
    for x, y in batches:
        cell(x / run(lambda: bump()), y)


def zip_in_enum(cell, batches, rate, restore):
    other = [1.0] * 100
    point = restore()
    for n, ((x, y), s) in enumerate(zip(batches, other), point.batches_delivered):
        cell(x * s, y)


class It:
    def __init__(self, b):
        self.b, self.n = b, 0

    def __iter__(self):
        for x, y in self.b:
            self.n += 1
            yield x / self.n, y


def iter_inline(cell, batches, rate, restore):
    restore()
    for x, y in It(batches):
        cell(x, y)


@pytest.mark.parametrize(
    "loop",
    [
        fresh_var,
        fresh_var_method,
        fresh_inline,
        fresh_ctor,
        with_fresh,
        pass_lambda,
        zip_in_enum,
        iter_inline,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)
