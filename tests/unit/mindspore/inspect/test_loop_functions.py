"""What a loop carries behind functions that it makes, and behind caches, is named before its first batch."""

# ruff: noqa: B007, B019, B023, E731, RUF059 - loops as people write them

from __future__ import annotations

import collections
import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from test_loop_begun import Training, check_refused


def plain(out, y):
    return ops.mse_loss(out, y)


def focal(out, y):
    return ops.mse_loss(out, y) * 2


class Held:
    def __init__(self, cell):
        self.cell = cell
        self.scale = 1.0

    def forward(self, x, y):
        return self.scale * self.cell(x, y)


class Scaled(nn.Cell):
    def __init__(self, cell, scale):
        super().__init__()
        self.cell = cell
        self.scale = scale

    def construct(self, x, y):
        return self.scale * self.cell(x, y)


@functools.cache
def generator(seed):
    return np.random.default_rng(seed)


@functools.cache
def generator_named_first(seed):
    r = np.random.default_rng(seed)
    return r


@functools.cache
def counter():
    return {"n": 0}


@functools.cache
def counters():
    return collections.Counter()


@functools.cache
def many():
    return []


class Counting:
    def __init__(self):
        self.n = 0
        self.r = np.random.default_rng(3)

    def step(self):
        self.n += 1
        return self.n

    @functools.cached_property
    def rng(self):
        return np.random.default_rng(1)

    @functools.lru_cache
    def rng2(self):
        return np.random.default_rng(1)


@functools.cache
def counting():
    return Counting()


@functools.cache
def doubled(k):
    return k * 2


@functools.cache
def array(k):
    return np.ones(6) * k


@functools.cache
def pair():
    return np.random.default_rng(1), 3


def lambda_in_loop(cell, batches, rate, restore):
    loss_fn = plain
    restore()
    for x, y in batches:
        forward = lambda x, y: loss_fn(cell(x, y), y)
        value, grads = ms.value_and_grad(forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            loss_fn = focal


def def_before(cell, batches, rate, restore):
    loss_fn = plain

    def forward(x, y):
        return loss_fn(cell(x, y), y)

    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            loss_fn = focal


def direct(cell, batches, rate, restore):
    loss_fn = plain
    restore()
    for x, y in batches:
        value = loss_fn(cell(x, y), y)
        ops.assign(rate, value)
        if float(value) < 1.1:
            loss_fn = focal


def lambda_called(cell, batches, rate, restore):
    loss_fn = plain
    restore()
    for x, y in batches:
        forward = lambda x, y: loss_fn(cell(x, y), y)
        value = forward(x, y)
        ops.assign(rate, value)
        if float(value) < 1.1:
            loss_fn = focal


def def_in_loop(cell, batches, rate, restore):
    loss_fn = plain
    restore()
    for x, y in batches:

        def forward(x, y):
            return loss_fn(cell(x, y), y)

        g = ms.value_and_grad(forward, None, [rate])
        value, grads = g(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            loss_fn = focal


def nested_fns(cell, batches, rate, restore):
    def plain(out, y):
        return ops.mse_loss(out, y)

    def focal(out, y):
        return ops.mse_loss(out, y) * 2

    loss_fn = plain
    restore()
    for x, y in batches:
        forward = lambda x, y: loss_fn(cell(x, y), y)
        value, grads = ms.value_and_grad(forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            loss_fn = focal


def nested_direct(cell, batches, rate, restore):
    def plain(out, y):
        return ops.mse_loss(out, y)

    def focal(out, y):
        return ops.mse_loss(out, y) * 2

    loss_fn = plain
    restore()
    for x, y in batches:
        value = loss_fn(cell(x, y), y)
        ops.assign(rate, value)
        if float(value) < 1.1:
            loss_fn = focal


def number_lambda_in_loop(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        forward = lambda x, y: scale * cell(x, y)
        value, grads = ms.value_and_grad(forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def number_def_before(cell, batches, rate, restore):
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def number_def_grad_before(cell, batches, rate, restore):
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    g = ms.value_and_grad(forward, None, [rate])
    restore()
    for x, y in batches:
        value, grads = g(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def def_grad_before(cell, batches, rate, restore):
    loss_fn = plain

    def forward(x, y):
        return loss_fn(cell(x, y), y)

    g = ms.value_and_grad(forward, None, [rate])
    restore()
    for x, y in batches:
        value, grads = g(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            loss_fn = focal


def number_def_grad_after_restore(cell, batches, rate, restore):
    scale = 1.0
    restore()

    def forward(x, y):
        return scale * cell(x, y)

    g = ms.value_and_grad(forward, None, [rate])
    for x, y in batches:
        value, grads = g(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def method(cell, batches, rate, restore):
    h = Held(cell)
    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(h.forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            h.scale = 0.5


def keyword(cell, batches, rate, restore):
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(weights=[rate], grad_position=None, fn=forward)(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def jit_in_loop(cell, batches, rate, restore):
    scale = 1.0

    def forward(x):
        return scale * x

    restore()
    for x, y in batches:
        f = ms.jit(forward)
        value = cell(f(x), y)
        if float(value) < 1.1:
            scale = 0.5


def decorated_in_loop(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:

        @ms.jit
        def f(x):
            return scale * x

        value = cell(f(x), y)
        if float(value) < 1.1:
            scale = 0.5


def decorated_plainly(cell, batches, rate, restore):
    def deco(f):
        @functools.wraps(f)
        def g(*a):
            return f(*a)

        return g

    scale = 1.0
    restore()
    for x, y in batches:

        @deco
        def f(x):
            return scale * x

        value = cell(f(x), y)
        if float(value) < 1.1:
            scale = 0.5


def partial_maker(cell, batches, rate, restore):
    vg = functools.partial(ms.value_and_grad, grad_position=None, weights=[rate])
    scale = 1.0

    def f(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        value, _ = vg(f)(x, y)
        if float(value) < 1.1:
            scale = 0.5


def partial_called(cell, batches, rate, restore):
    scale = 1.0

    def forward(k, x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        f = functools.partial(forward, 2)
        value = f(x, y)
        ops.assign(rate, value)
        if float(value) < 1.1:
            scale = 0.5


def partial_argument(cell, batches, rate, restore):
    scale = 1.0

    def forward(scale, x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        f = functools.partial(forward, scale)
        value, grads = ms.value_and_grad(f, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def factory(cell, batches, rate, restore):
    loss_fn = plain

    def make(loss_fn):
        def forward(x, y):
            return loss_fn(cell(x, y), y)

        return ms.value_and_grad(forward, None, [rate])

    restore()
    for x, y in batches:
        value, grads = make(loss_fn)(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            loss_fn = focal


def factory_remade(cell, batches, rate, restore):
    def make(loss_fn):
        def forward(x, y):
            return loss_fn(cell(x, y), y)

        return ms.value_and_grad(forward, None, [rate])

    step = make(plain)
    restore()
    for x, y in batches:
        value, grads = step(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            step = make(focal)


def factory_plain(cell, batches, rate, restore):
    def make(scale):
        def forward(x, y):
            return scale * cell(x, y)

        return forward

    scale = 1.0
    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(make(scale), None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def cell_made(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(Scaled(cell, scale), None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def cell_that_reads_a_variable(cell, batches, rate, restore):
    scale = 1.0

    class Wrapped(nn.Cell):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def construct(self, x, y):
            return self.cell(x, y) * scale

    wrapped = Wrapped()
    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(wrapped, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def cell_that_reads_a_variable_is_called(cell, batches, rate, restore):
    scale = 1.0

    class Wrapped(nn.Cell):
        def construct(self, x):
            return x * scale

    restore()
    wrapped = Wrapped()
    for x, y in batches:
        if float(cell(wrapped(x), y)) < 1.1:
            scale = 0.5


def exact_cell_of_the_loop(cell, batches, rate, restore):
    scale, best = 1.0, 2.0

    class Wrapped(nn.Cell):
        def construct(self, x):
            return x * scale

    wrapped = Wrapped()
    restore()
    for x, y in batches:
        best = min(best, float(cell(wrapped(x), y)))
    print(best)


class Stepping:
    def __init__(self):
        self.n = 0

    def scaled(self, by, x):
        self.n += by
        return x * self.n

    step = functools.partialmethod(scaled, 1)


def partial_method(cell, batches, rate, restore):
    stepping = Stepping()
    restore()
    for x, y in batches:
        cell(stepping.step(x), y)


def grad_cached(cell, batches, rate, restore):
    g = None
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        if g is None:
            g = ms.value_and_grad(forward, None, [rate])
        value, grads = g(x, y)
        ops.assign(rate, grads[0])
        if float(value) < 1.1:
            scale = 0.5


def functional(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(lambda a, b: ops.mul(cell(a, b), scale), None, [rate])(x, y)
        ops.assign(rate, grads[0])
        scale = scale * 0.9 if float(value) < 1 else scale


def vmap_called(cell, batches, rate, restore):
    scale = 1.0

    def f(a):
        return a * scale

    restore()
    for x, y in batches:
        value = ms.vmap(f)(x)
        cell(value, y)
        scale = scale * 0.9 if float(value.sum()) < 1 else scale


def gradoperation(cell, batches, rate, restore):
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        grads = ops.GradOperation(get_by_list=True)(forward, [rate])(x, y)
        ops.assign(rate, grads[0])
        scale = scale * 0.9 if float(grads[0]) < 1 else scale


def gradient_alone(cell, batches, rate, restore):
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        grads = ms.grad(forward, None, [rate])(x, y)
        ops.assign(rate, grads[0])
        scale = scale * 0.9 if float(grads[0]) < 1 else scale


def recompute(cell, batches, rate, restore):
    scale = 1.0

    def forward(x, y):
        return scale * cell(x, y)

    restore()
    for x, y in batches:
        ops.assign(rate, ms.recompute(forward, x, y))
        scale = scale * 0.9 if float(rate) < 1 else scale


def forward_gradient(cell, batches, rate, restore):
    scale = 1.0

    def forward(x):
        return scale * cell(x, x)

    restore()
    for x, y in batches:
        v, g = ms.jvp(forward, x, x)
        ops.assign(rate, g)
        scale = scale * 0.9 if float(rate) < 1 else scale


def get_vjp(cell, batches, rate, restore):
    scale = 1.0

    def forward(x):
        return scale * cell(x, x)

    restore()
    for x, y in batches:
        v, f = ms.vjp(forward, x)
        ops.assign(rate, f(v))
        scale = scale * 0.9 if float(rate) < 1 else scale


def gen_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x + float(generator(4).normal()), y)


def gen2_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        r = generator_named_first(4)
        cell(x + float(r.normal()), y)


def counter_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        counter()["n"] += 1
        cell(x * counter()["n"], y)


def counter_var(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        c = counter()
        c["n"] += 1
        cell(x * c["n"], y)


def counters_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        counters().update("a")
        cell(x * counters()["a"], y)


def many_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        many().append(1)
        cell(x * len(many()), y)


def obj_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * counting().step(), y)


def obj_attr(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        counting().n += 1
        cell(x * counting().n, y)


def obj_rng(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * float(counting().r.normal()), y)


def property_cached(cell, batches, rate, restore):
    o = Counting()
    restore()
    for x, y in batches:
        cell(x * float(o.rng.normal()), y)


def method_cached(cell, batches, rate, restore):
    o = Counting()
    restore()
    for x, y in batches:
        cell(x * float(o.rng2().normal()), y)


def pair_called(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        r, k = pair()
        cell(x * float(r.normal()), y)


def local(cell, batches, rate, restore):
    @functools.cache
    def g():
        return np.random.default_rng(1)

    restore()
    for x, y in batches:
        cell(x * float(g().normal()), y)


def local_after(cell, batches, rate, restore):
    restore()

    @functools.cache
    def g():
        return np.random.default_rng(1)

    for x, y in batches:
        cell(x * float(g().normal()), y)


def exact_grad_cached(cell, batches, rate, restore):
    g = None

    def forward(x, y):
        return cell(x, y)

    restore()
    for x, y in batches:
        if g is None:
            g = ms.value_and_grad(forward, None, [rate])
        value, grads = g(x, y)
        ops.assign(rate, grads[0])


def exact_grad_in_loop(cell, batches, rate, restore):
    def forward(x, y):
        return cell(x, y)

    restore()
    for x, y in batches:
        g = ms.value_and_grad(forward, None, [rate])
        value, grads = g(x, y)
        ops.assign(rate, grads[0])


def exact_partial(cell, batches, rate, restore):
    def forward(k, x, y):
        return k * cell(x, y)

    restore()
    total = 0
    for x, y in batches:
        g = functools.partial(forward, 2)
        value = g(x, y)
        ops.assign(rate, value)
        total = total + float(value)
        print(total)


def exact_counted(cell, batches, rate, restore):
    calls = 0

    def forward(x, y):
        nonlocal calls
        calls += 1
        return cell(x, y)

    restore()
    for x, y in batches:
        value, grads = ms.value_and_grad(forward, None, [rate])(x, y)
        ops.assign(rate, value)
        print(calls)


def exact_number(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * doubled(2), y)


def exact_array(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * ms.Tensor(array(2), ms.float32), y)


def exact_printed_count(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        print(counting().step())
        cell(x, y)


NAMED = [
    lambda_in_loop,
    def_before,
    direct,
    lambda_called,
    def_in_loop,
    nested_fns,
    nested_direct,
    number_lambda_in_loop,
    number_def_before,
    number_def_grad_before,
    def_grad_before,
    number_def_grad_after_restore,
    method,
    keyword,
    jit_in_loop,
    decorated_in_loop,
    decorated_plainly,
    partial_maker,
    partial_called,
    partial_argument,
    factory,
    factory_remade,
    factory_plain,
    cell_made,
    partial_method,
    cell_that_reads_a_variable,
    cell_that_reads_a_variable_is_called,
    grad_cached,
    functional,
    vmap_called,
    gradoperation,
    gradient_alone,
    recompute,
    forward_gradient,
    get_vjp,
    gen_called,
    gen2_called,
    counter_called,
    counter_var,
    counters_called,
    many_called,
    obj_called,
    obj_attr,
    obj_rng,
    property_cached,
    method_cached,
    pair_called,
    local,
    local_after,
]
EXACT = [
    exact_cell_of_the_loop,
    exact_grad_cached,
    exact_grad_in_loop,
    exact_partial,
    exact_counted,
    exact_number,
    exact_array,
    exact_printed_count,
]


@pytest.mark.parametrize("loop", NAMED)
def test_loop_is_refused(loop):
    check_refused(loop)


@pytest.mark.parametrize("loop", EXACT)
def test_loop_is_not_refused(loop):
    Training(strict=True).train(loop)
