"""Objects that a loop makes itself, and lambdas that it gives away, are followed."""

# ruff: noqa: B007, B905, C417, PLW0108, F841 - loops as people write them

from __future__ import annotations

import itertools

import pytest
from test_loop_begun import Training

from ckptkit.errors import ResumeError

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


class Tr5:
    step = 0

    def __init__(self, cell, batches):
        self.cell, self.batches = cell, batches

    def run(self, restore):
        restore()
        for b in self.batches:
            self.dispatch("batch", *b)

    def dispatch(self, kind, *a):
        return getattr(self, f"on_{kind}")(*a)

    def on_batch(self, x, y):
        self.step += 1
        self.cell(x / self.step, y)


class Tr9(Tr5):
    def run(self, restore):
        restore()
        losses = [self.one(x, y) for x, y in self.batches]

    def one(self, x, y):
        self.step += 1
        return float(self.cell(x / self.step, y))


class Tr10(Tr9):
    def run(self, restore):
        restore()
        list(map(lambda b: self.one(*b), self.batches))


def trainer_map(cell, batches, rate, restore):
    Tr10(cell, batches).run(restore)


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
        trainer_map,
        iter_inline,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    training = Training(strict=True)
    with pytest.raises(ResumeError, match=rf"{loop.__name__}\(\): |carries|taken after"):
        training.train(loop)
    assert training.cell.counters.micro_steps == 0
