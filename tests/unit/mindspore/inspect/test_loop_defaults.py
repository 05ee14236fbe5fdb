"""What functions made in a loop have by default, what a cache keeps, and what it only computes."""

# ruff: noqa: E731 - loops as people write them

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from test_loop_begun import Training, check_refused


class Kept:
    @functools.cached_property
    def buffer(self):
        return []

    @functools.cached_property
    def table(self):
        return {"n": 0}

    @functools.cached_property
    def memo(self):
        return {}

    @functools.cached_property
    def noise(self):
        return np.random.default_rng(4).normal(size=6)

    def doubled(self, n):
        if n not in self.memo:
            self.memo[n] = n * 2.0
        return self.memo[n]


@functools.cache
def noise(n):
    return float(np.random.default_rng(n).normal())


@functools.cache
def projection():
    r = np.random.default_rng(5)
    return ms.Tensor(r.normal(size=(6, 6)), ms.float32)


@functools.cache
def generator(seed):
    return np.random.default_rng(seed)


@functools.cache
def next_noise(n):
    return float(generator(1).normal()) + n


def lambda_with_default(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        f = lambda x, y, s=scale: s * cell(x, y)
        value = f(x, y)
        ops.assign(rate, value)
        if float(value) < 1.1:
            scale = 0.5


def gradient_of_a_lambda_with_default(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        f = lambda x, y, s=scale: s * cell(x, y)
        value, grads = ms.value_and_grad(f, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def function_with_default(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:

        def f(x, *, s=scale):
            return x * s

        value = cell(f(x), y)
        if float(value) < 1.1:
            scale = 0.5


def gradient_of_a_function_with_default(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:

        def f(x, y, s=scale):
            return s * cell(x, y)

        value, grads = ms.value_and_grad(f, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def list_of_a_cached_property(cell, batches, rate, restore):
    kept = Kept()
    restore()
    for x, y in batches:
        kept.buffer.append(1)
        cell(x * len(kept.buffer), y)


def dict_of_a_cached_property(cell, batches, rate, restore):
    kept = Kept()
    restore()
    for x, y in batches:
        kept.table["n"] += 1
        cell(x * kept.table["n"], y)


def dict_of_a_cached_property_made_late(cell, batches, rate, restore):
    restore()
    kept = Kept()
    for x, y in batches:
        kept.table["n"] += 1
        cell(x * kept.table["n"], y)


def draw_of_a_cache_from_another_one(cell, batches, rate, restore):
    point = restore()
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        cell(x * next_noise(n), y)


class Holder:
    step = None


class Trainer:
    def __init__(self, cell, rate):
        self.cell, self.rate, self.scale = cell, rate, 1.0
        self.gradient, self.by_name = None, {}

    def forward(self, x, y):
        return self.scale * self.cell(x, y)

    def lazily(self, x, y):
        if self.gradient is None:
            self.gradient = ms.value_and_grad(self.forward, None, [self.rate])
        return self.train(self.gradient, x, y)

    def by_key(self, x, y):
        if "forward" not in self.by_name:
            self.by_name["forward"] = ms.value_and_grad(self.forward, None, [self.rate])
        return self.train(self.by_name["forward"], x, y)

    def train(self, gradient, x, y):
        value, grads = gradient(x, y)
        ops.assign(self.rate, grads[0])
        return value


def gradient_in_a_dict(cell, batches, rate, restore):
    scale, steps = 1.0, {}

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        if "forward" not in steps:
            steps["forward"] = ms.value_and_grad(forward, None, [rate])
        value, grads = steps["forward"](x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def gradient_in_an_attribute(cell, batches, rate, restore):
    scale, holder = 1.0, Holder()

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        holder.step = ms.value_and_grad(forward, None, [rate])
        value, grads = holder.step(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def gradient_in_an_attribute_of_a_trainer(cell, batches, rate, restore):
    trainer = Trainer(cell, rate)
    restore()
    for x, y in batches:
        if float(trainer.lazily(x, y)) < 1.1:
            trainer.scale = 0.5


def gradient_in_a_dict_of_a_trainer(cell, batches, rate, restore):
    trainer = Trainer(cell, rate)
    restore()
    for x, y in batches:
        if float(trainer.by_key(x, y)) < 1.1:
            trainer.scale = 0.5


def cell_in_a_partial(cell, batches, rate, restore):
    scale, step = 1.0, functools.partial(cell)
    restore()
    for x, y in batches:
        value = step(x * scale, y)
        if float(value) < 1.1:
            scale = 0.5


def cell_in_a_partial_made_in_the_loop(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        value = functools.partial(cell, x * scale)(y)
        if float(value) < 1.1:
            scale = 0.5


def exact_gradients_of_a_trainer(cell, batches, rate, restore):
    trainer = Trainer(cell, rate)
    restore()
    for x, y in batches:
        print(trainer.lazily(x, y), trainer.by_key(x, y))


def exact_default_number(cell, batches, rate, restore):
    point = restore()
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        f = lambda x, y, k=n: cell(x * k, y)
        f(x, y)


def exact_default_batch(cell, batches, rate, restore):
    k = 3
    restore()
    for x, y in batches:

        def f(y, x=x, *, k=k):
            return cell(x * k, y)

        f(y)


def exact_graph_defined_in_loop(cell, batches, rate, restore):
    restore()
    for x, y in batches:

        @ms.jit
        def prepare(a):
            return a * 2

        cell(prepare(x), y)


def exact_drawn_by_number(cell, batches, rate, restore):
    point = restore()
    for n, (x, y) in enumerate(batches, point.batches_delivered):
        cell(x * noise(n), y)


def exact_drawn_once(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(ops.matmul(x, projection()), y)


def exact_drawn_by_a_cached_property(cell, batches, rate, restore):
    kept = Kept()
    restore()
    for x, y in batches:
        cell(x * ms.Tensor(kept.noise, ms.float32), y)


def exact_memo(cell, batches, rate, restore):
    kept = Kept()
    restore()
    for x, y in batches:
        cell(x * kept.doubled(3), y)


def exact_history(cell, batches, rate, restore):
    kept = Kept()
    restore()
    for x, y in batches:
        kept.buffer.append(float(cell(x, y)))
        print(np.mean(kept.buffer))


NAMED = [
    lambda_with_default,
    gradient_of_a_lambda_with_default,
    function_with_default,
    gradient_of_a_function_with_default,
    list_of_a_cached_property,
    dict_of_a_cached_property,
    dict_of_a_cached_property_made_late,
    draw_of_a_cache_from_another_one,
    gradient_in_a_dict,
    gradient_in_an_attribute,
    gradient_in_an_attribute_of_a_trainer,
    gradient_in_a_dict_of_a_trainer,
    cell_in_a_partial,
    cell_in_a_partial_made_in_the_loop,
]
EXACT = [
    exact_gradients_of_a_trainer,
    exact_default_number,
    exact_default_batch,
    exact_graph_defined_in_loop,
    exact_drawn_by_number,
    exact_drawn_once,
    exact_drawn_by_a_cached_property,
    exact_memo,
    exact_history,
]


@pytest.mark.parametrize("loop", NAMED)
def test_loop_is_refused(loop):
    check_refused(loop)


@pytest.mark.parametrize("loop", EXACT)
def test_loop_is_not_refused(loop):
    Training(strict=True).train(loop)
