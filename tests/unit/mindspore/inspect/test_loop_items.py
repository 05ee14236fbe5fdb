"""Objects of the user's are followed wherever they lie."""

# ruff: noqa: B007, B905, RUF015 - loops as people write them

from __future__ import annotations

import collections
import contextlib
import functools
import heapq
import itertools
import random

import numpy as np
import pytest
from mindspore import ops
from test_loop_begun import check_refused


class Cb:
    def __init__(self, rate):
        self.n, self.rate = 0, rate

    def on_step(self):
        self.n += 1
        ops.assign(self.rate, self.rate / self.n)


def c_sorted(cell, batches, rate, restore):
    cbs = [Cb(rate)]
    restore()
    for x, y in batches:
        for c in sorted(cbs, key=lambda c: 1):
            c.on_step()


def c_tuple_inline(cell, batches, rate, restore):
    a, b = Cb(rate), Cb(rate)
    restore()
    for x, y in batches:
        for c in (a, b):
            c.on_step()


def c_listcopy(cell, batches, rate, restore):
    cbs = [Cb(rate)]
    restore()
    for x, y in batches:
        for c in list(cbs):
            c.on_step()


def c_slice(cell, batches, rate, restore):
    cbs = [Cb(rate)]
    restore()
    for x, y in batches:
        for c in cbs[:]:
            c.on_step()


def c_chain(cell, batches, rate, restore):
    cbs = [Cb(rate)]
    restore()
    for x, y in batches:
        for c in itertools.chain(cbs, []):
            c.on_step()


def c_filter_comp(cell, batches, rate, restore):
    cbs = [Cb(rate)]
    restore()
    for x, y in batches:
        for c in [c for c in cbs if hasattr(c, "on_step")]:
            c.on_step()


def c_reversed(cell, batches, rate, restore):
    cbs = [Cb(rate)]
    restore()
    for x, y in batches:
        for c in reversed(cbs):
            c.on_step()


class R:
    def __init__(self, rate):
        self._s = Cb(rate)
        self.l = [self._s]
        self.d = {"s": self._s}

    @property
    def sched(self):
        return self._s

    def __getitem__(self, k):
        return self.d[k]

    def __iter__(self):
        return iter(self.l)

    def get_sched(self):
        return self._s


def g_property(cell, batches, rate, restore):
    r = R(rate)
    restore()
    for x, y in batches:
        r.sched.on_step()


def g_getitem(cell, batches, rate, restore):
    r = R(rate)
    restore()
    for x, y in batches:
        r["s"].on_step()


def g_iter(cell, batches, rate, restore):
    r = R(rate)
    restore()
    for x, y in batches:
        for s in r:
            s.on_step()


def items_direct(cell, batches, rate, restore):
    d = {"s": Cb(rate)}
    restore()
    for x, y in batches:
        for k, s in d.items():
            s.on_step()


def pairs(cell, batches, rate, restore):
    d = [("s", Cb(rate))]
    restore()
    for x, y in batches:
        for k, s in d:
            s.on_step()


def zip_objs(cell, batches, rate, restore):
    d = [Cb(rate)]
    restore()
    for x, y in batches:
        for k, s in zip("a", d):
            s.on_step()


def tuple_unpack_objs(cell, batches, rate, restore):
    d = (Cb(rate), Cb(rate))
    restore()
    for x, y in batches:
        a, _b = d
        a.on_step()


def with_as(cell, batches, rate, restore):
    n = [0]

    @contextlib.contextmanager
    def t():
        n[0] += 1
        yield n[0]

    restore()
    for x, y in batches:
        with t() as v:
            cell(x / v, y)


def exec_future(cell, batches, rate, restore):
    import concurrent.futures as cf

    pool = cf.ThreadPoolExecutor(1)
    n = [0]

    def work(x):
        n[0] += 1
        return x / n[0]

    restore()
    for x, y in batches:
        cell(pool.submit(work, x).result(), y)


def exec_map(cell, batches, rate, restore):
    import concurrent.futures as cf

    pool = cf.ThreadPoolExecutor(1)
    n = [0]

    def work(x):
        n[0] += 1
        return x / n[0]

    restore()
    for x, y in batches:
        cell(list(pool.map(work, [x]))[0], y)


def reduce_fn(cell, batches, rate, restore):
    n = [0]

    def t(v, w):
        n[0] += 1
        return v / n[0]

    restore()
    for x, y in batches:
        cell(functools.reduce(t, [x, x]), y)


def if_table(cell, batches, rate, restore):
    n = [0]

    def a():
        n[0] += 1
        return n[0]

    def b():
        return 1

    table = {"b": b, "a": a}
    restore()
    for x, y in batches:
        cell(x / table["a" if float(y) > 0 else "b"](), y)


def one_drawn(cell, batches, rate, restore):
    both = [Cb(rate), Cb(rate)]
    restore()
    for x, y in batches:
        random.choice(both).on_step()


def one_sampled(cell, batches, rate, restore):
    both = [Cb(rate), Cb(rate)]
    restore()
    for x, y in batches:
        for c in random.sample(both, 1):
            c.on_step()


def smallest(cell, batches, rate, restore):
    both = [Cb(rate), Cb(rate)]
    restore()
    for x, y in batches:
        min(both, key=id).on_step()


def larger_of_two(cell, batches, rate, restore):
    a, b = Cb(rate), Cb(rate)
    restore()
    for x, y in batches:
        max(a, b, key=id).on_step()


def first_that_fits(cell, batches, rate, restore):
    a, b = Cb(rate), Cb(rate)
    restore()
    for x, y in batches:
        next(c for c in (a, b) if c is not None).on_step()


def taken_in_turn(cell, batches, rate, restore):
    queue = collections.deque([Cb(rate), Cb(rate)])
    restore()
    for x, y in batches:
        c = queue.popleft()
        c.on_step()
        queue.append(c)


def taken_from_a_heap(cell, batches, rate, restore):
    heap = [(0, Cb(rate)), (1, Cb(rate))]
    restore()
    for x, y in batches:
        at, c = heapq.heappop(heap)
        c.on_step()
        heapq.heappush(heap, (at, c))


def tenth_of_another_class(cell, batches, rate, restore):
    mixed = [object() for _ in range(9)] + [Cb(rate)]
    restore()
    for x, y in batches:
        for c in mixed:
            if isinstance(c, Cb):
                c.on_step()


def seeds_spawned(cell, batches, rate, restore):
    seeds = np.random.SeedSequence(5)
    restore()
    for x, y in batches:
        cell(x * np.random.default_rng(seeds.spawn(1)[0]).random(), y)


@pytest.mark.parametrize(
    "loop",
    [
        c_sorted,
        c_tuple_inline,
        c_listcopy,
        c_slice,
        c_chain,
        c_filter_comp,
        c_reversed,
        g_property,
        g_getitem,
        g_iter,
        items_direct,
        pairs,
        zip_objs,
        tuple_unpack_objs,
        with_as,
        exec_future,
        exec_map,
        reduce_fn,
        if_table,
        one_drawn,
        one_sampled,
        smallest,
        larger_of_two,
        first_that_fits,
        taken_in_turn,
        taken_from_a_heap,
        tenth_of_another_class,
        seeds_spawned,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)
