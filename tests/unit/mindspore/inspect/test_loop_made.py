"""Objects that a loop makes itself, and lambdas that it gives away, are followed."""

# ruff: noqa: B007, B905, PLW0108 - loops as people write them

from __future__ import annotations

import abc
import enum
import functools
import itertools
import weakref

import numpy as np
import pytest
from test_loop_begun import Training, check_refused

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


def by_a_sentinel(cell, batches, rate, restore):
    seen = 0

    def step():
        nonlocal seen
        x, y = next(stream)
        seen = seen * 0.5 + 1
        return cell(x * seen, y)

    restore()
    stream = iter(batches)
    for _ in iter(step, None):
        if batches.epoch > 1:
            break


def by_a_sentinel_made_before(cell, batches, rate, restore):
    kept = Decay()
    turns = iter(functools.partial(kept.next), None)
    restore()
    for factor, (x, y) in zip(turns, batches):
        cell(x * factor, y)


def lines_of_a_file(cell, batches, rate, restore):
    with open(__file__) as hints:
        restore()
        for x, y in batches:
            cell(x * len(hints.readline()), y)


def lines_after_a_seek_in_each_epoch(cell, batches, rate, restore):
    with open(__file__) as hints:
        restore()
        for at, (x, y) in enumerate(batches):
            if at % 4 == 0:
                hints.seek(0)
            cell(x * len(hints.readline()), y)


def a_seek_to_a_carried_place(cell, batches, rate, restore):
    with open(__file__, "rb") as hints:
        restore()
        at = 0
        for x, y in batches:
            hints.seek(at)
            at += 3
            cell(x * len(hints.readline()), y)


def a_seek_from_where_it_is(cell, batches, rate, restore):
    with open(__file__, "rb") as hints:
        restore()
        for x, y in batches:
            hints.seek(3, 1)
            cell(x * len(hints.readline()), y)


class Schedule(abc.ABC):
    @abc.abstractmethod
    def next(self):
        """the next factor"""


class Decay(Schedule):
    def __init__(self):
        self.value = 1.0

    def next(self):
        self.value *= 0.95
        return self.value


def of_an_abstract_class(cell, batches, rate, restore):
    restore()
    for x, y in with_factor(batches):
        cell(x, y)


def with_factor(batches):
    schedule = Decay()
    for x, y in batches:
        yield x * schedule.next(), y


class Table(dict):
    def factor(self):
        self["rate"] *= 0.95
        return self["rate"]


def of_a_class_of_dicts(cell, batches, rate, restore):
    restore()
    for x, y in by_table(batches):
        cell(x, y)


def by_table(batches):
    table = Table(rate=1.0)
    for x, y in batches:
        yield x * table.factor(), y


class Update:
    def __init__(self, rate):
        self.rate = rate

    def undo(self):
        self.rate.set_data(self.rate * 2)


def taken_from_a_list(cell, batches, rate, restore):
    restore()
    done = []
    for x, y in batches:
        if float(cell(x, y)) > 1 and done:
            done.pop().undo()
        done.append(Update(rate))


class Jitter:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, row):
        return row[0] + self.rng.normal(), row[1]


def with_a_generator(cell, batches, rate, restore):
    restore()
    for x, y in map(Jitter(3), batches):
        cell(x, y)


def behind_a_cache(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x / (1 + meter("batches").count()), y)


@functools.cache
def meter(name):
    return Meter()


class Meter:
    def __init__(self):
        self.n = 0

    def count(self):
        self.n += 1
        return self.n


class Owner:
    scale = 1.0


OWNER = Owner()
OWNER.scale = 1.0


def by_a_weak_proxy(cell, batches, rate, restore):
    owner = weakref.proxy(OWNER)
    restore()
    for x, y in batches:
        owner.scale *= 0.9
        cell(x * owner.scale, y)


def by_a_weak_reference(cell, batches, rate, restore):
    owner = weakref.ref(OWNER)
    restore()
    for x, y in batches:
        owner().scale *= 0.9
        cell(x * owner().scale, y)


def pairs_of_batches(cell, batches, rate, restore):
    restore()
    for (before, _), (x, y) in itertools.pairwise(batches):
        cell(x - before, y)


def one_ahead(cell, batches, rate, restore):
    restore()
    for (x, y), (after, _) in with_the_next(batches):
        cell(x + after, y)


def with_the_next(batches):
    behind, ahead = itertools.tee(batches)
    next(ahead, None)
    yield from zip(behind, ahead)


class Phase(enum.Enum):
    FAST = (1.0, 3)
    SLOW = (0.5, 10**6)

    def __init__(self, factor, left):
        self.factor, self.left = factor, left

    @classmethod
    def now(cls):
        return next(one for one in cls if one.left > 0)


def member_of_an_enum(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        phase = Phase.now()
        phase.left -= 1
        cell(x * Phase.now().factor, y)


@pytest.mark.parametrize(
    "loop",
    [
        of_an_abstract_class,
        of_a_class_of_dicts,
        taken_from_a_list,
        with_a_generator,
        behind_a_cache,
        by_a_weak_proxy,
        by_a_weak_reference,
        pairs_of_batches,
        one_ahead,
        member_of_an_enum,
        fresh_var,
        fresh_var_method,
        fresh_inline,
        fresh_ctor,
        with_fresh,
        pass_lambda,
        zip_in_enum,
        iter_inline,
        by_a_sentinel,
        by_a_sentinel_made_before,
        lines_of_a_file,
        lines_after_a_seek_in_each_epoch,
        a_seek_to_a_carried_place,
        a_seek_from_where_it_is,
    ],
    ids=lambda one: one.__name__,
)
def test_state_is_named_before_the_first_batch(loop):
    check_refused(loop)


class Half(Schedule):
    def __init__(self, x):
        self.x = x

    def next(self):
        self.x = self.x / 2
        return self.x


def made_for_each_batch(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(Half(x).next(), y)


def generator_for_each_batch(cell, batches, rate, restore):
    point = restore()
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        cell(Jitter(at)((x, y))[0], y)


def pairs_of_other_things(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * max(b - a for a, b in itertools.pairwise((1.0, 2.0, 4.0))), y)


def undone_at_once(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        done = [Update(rate)]
        cell(x, y)
        done.pop().undo()


def a_seek_to_the_row_of_the_batch(cell, batches, rate, restore):
    with open(__file__, "rb") as hints:
        point = restore()
        for at, (x, y) in enumerate(batches, point.batches_delivered):
            hints.seek(at % 8 * 16)
            cell(x * len(hints.read(16)), y)


@pytest.mark.parametrize(
    "loop",
    [
        made_for_each_batch,
        generator_for_each_batch,
        pairs_of_other_things,
        undone_at_once,
        a_seek_to_the_row_of_the_batch,
    ],
    ids=lambda one: one.__name__,
)
def test_what_begins_anew_with_each_batch_is_not_named(loop):
    training = Training(strict=True)
    training.train(loop)
    assert training.cell.counters.micro_steps > 0
