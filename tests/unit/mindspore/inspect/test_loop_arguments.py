"""Functions are followed whatever way they get their arguments, and by whatever name they are called."""

# ruff: noqa: C417, F841, RUF012 - loops as people write them

from __future__ import annotations

import pytest
from test_loop_begun import check_refused


def star_kwargs(cell, batches, rate, restore):
    opts = {"scale": 1.0}

    def step(x, y, scale=1.0):
        return cell(x * scale, y)

    restore()
    for x, y in batches:
        step(x, y, **opts)
        opts["scale"] *= 0.9


def star_args(cell, batches, rate, restore):
    h = [1.0]

    def step(x, y, s):
        return cell(x * s, y)

    restore()
    for x, y in batches:
        step(x, y, *h)
        h[0] *= 0.9


def var_args(cell, batches, rate, restore):
    s = 1.0

    def step(*a):
        return cell(a[0] * a[2], a[1])

    restore()
    for x, y in batches:
        step(x, y, s)
        s *= 0.9


def var_kwargs(cell, batches, rate, restore):
    s = 1.0

    def step(x, y, **k):
        return cell(x * k["s"], y)

    restore()
    for x, y in batches:
        step(x, y, s=s)
        s *= 0.9


def forwarded(cell, batches, rate, restore):
    s = 1.0

    def inner(x, y, s):
        return cell(x * s, y)

    def step(*a, **k):
        return inner(*a, **k)

    restore()
    for x, y in batches:
        step(x, y, s)
        s *= 0.9


def forwarded_kw(cell, batches, rate, restore):
    s = 1.0

    def inner(x, y, s=1):
        return cell(x * s, y)

    def step(*a, **k):
        return inner(*a, **k)

    restore()
    for x, y in batches:
        step(x, y, s=s)
        s *= 0.9


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


def trainer_dispatch(cell, batches, rate, restore):
    Tr5(cell, batches).run(restore)


class Tr6(Tr5):
    handlers = {}

    def dispatch(self, kind, *a):
        return {"batch": self.on_batch}[kind](*a)


def trainer_dispatch_dict(cell, batches, rate, restore):
    Tr6(cell, batches).run(restore)


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


@pytest.mark.parametrize(
    "loop",
    [
        star_kwargs,
        star_args,
        var_args,
        var_kwargs,
        forwarded,
        forwarded_kw,
        trainer_dispatch,
        trainer_dispatch_dict,
        trainer_map,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)
