"""Of several objects in a container, each is followed."""

# ruff: noqa: B007, B905, PLW2901 - loops as people write them

from __future__ import annotations

import numpy as np
import pytest
from mindspore import ops
from test_loop_begun import Training, check_refused

from ckptkit.errors import ResumeError


class N:
    def step(self):
        pass


class S:
    def __init__(self, rate):
        self.rate, self.n = rate, 0

    def step(self):
        self.n += 1
        ops.assign(self.rate, self.rate / self.n)


def dict_second(cell, batches, rate, restore):
    d = {"none": N(), "lr": S(rate)}
    restore()
    for x, y in batches:
        cell(x, y)
        d["lr"].step()


def list_second(cell, batches, rate, restore):
    d = [N(), S(rate)]
    restore()
    for x, y in batches:
        cell(x, y)
        d[1].step()


def list_last(cell, batches, rate, restore):
    d = [N(), S(rate)]
    restore()
    for x, y in batches:
        cell(x, y)
        d[-1].step()


def tuple_second(cell, batches, rate, restore):
    d = (None, S(rate))
    restore()
    for x, y in batches:
        cell(x, y)
        d[1].step()


def dict_none_first(cell, batches, rate, restore):
    d = {"name": "x", "lr": S(rate)}
    restore()
    for x, y in batches:
        cell(x, y)
        d["lr"].step()


def dict_rng_second(cell, batches, rate, restore):
    d = {"a": 1, "rng": np.random.default_rng(0)}
    restore()
    for x, y in batches:
        cell(x + d["rng"].normal(), y)


def zip_rng(cell, batches, rate, restore):
    d = [np.random.default_rng(i) for i in range(2)]
    restore()
    for x, y in batches:
        for r, v in zip(d, [x, y]):
            x = x + r.normal()
        cell(x, y)


def rng_in_obj_prop(cell, batches, rate, restore):
    class A:
        def __init__(self):
            self._r = np.random.default_rng(0)

        @property
        def rng(self):
            return self._r

    a = A()
    restore()
    for x, y in batches:
        cell(x + a.rng.normal(), y)


@pytest.mark.parametrize(
    "loop",
    [
        dict_second,
        list_second,
        list_last,
        tuple_second,
        dict_none_first,
        dict_rng_second,
        zip_rng,
        rng_in_obj_prop,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)


class Level:
    def __init__(self):
        self.level = 1.0


class Offset(Level):
    pass


def attribute_of_the_second(cell, batches, rate, restore):
    kinds = {"a": Level(), "b": Offset()}
    restore()
    for x, y in batches:
        for name in ("a", "b"):
            kinds[name].level *= 0.9
        cell(x * kinds["b"].level, y)


def attribute_of_either(cell, batches, rate, restore):
    first, second = Level(), Offset()
    restore()
    for x, y in batches:
        (first if float(x.mean()) > 2.0 else second).level *= 0.9
        cell(x * second.level, y)


@pytest.mark.parametrize(
    ("loop", "where"),
    [(attribute_of_the_second, "(Offset)"), (attribute_of_either, "second (Offset)")],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_attribute_of_whichever_object_is_named(loop, where):
    training = Training(strict=True)
    with pytest.raises(ResumeError) as raised:
        training.train(loop)
    assert where in str(raised.value)
