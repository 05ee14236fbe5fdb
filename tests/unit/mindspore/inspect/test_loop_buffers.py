"""Buffers, caches and records of a loop are not taken for state that it carries."""

from __future__ import annotations

import argparse

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from test_loops import Training


def default_rebound(cell, batches, rate, restore):

    def step(x, y, scale=1.0):
        scale = scale / 2
        return cell(x * scale, y)

    restore()
    for x, y in batches:
        step(x, y)


def early_return(cell, batches, rate, restore):
    seen = []

    def record(loss):
        if len(seen) > 100:
            return
        seen.append(float(loss))

    restore()
    for x, y in batches:
        record(cell(x, y))


def cleared_and_filled(cell, batches, rate, restore):
    buffer = []
    restore()
    for x, y in batches:
        buffer.clear()
        buffer.append(x)
        buffer.append(x)
        cell(ops.stack(buffer), y)


def setdefault_cache(cell, batches, rate, restore):
    cache = {}
    restore()
    for x, y in batches:
        mask = cache.setdefault(x.shape, ops.ones(x.shape))
        cell(x * mask, y)


def memo(cell, batches, rate, restore):
    cache = {}

    def mask_of(shape):
        if shape not in cache:
            cache[shape] = ops.ones(shape)
        return cache[shape]

    restore()
    for x, y in batches:
        cell(x * mask_of(x.shape), y)


def scratch(cell, batches, rate, restore):
    buffer = np.zeros((2, 6), np.float32)
    restore()
    for x, y in batches:
        buffer[:] = x.asnumpy()
        cell(ms.Tensor(buffer), y)


def out_scratch(cell, batches, rate, restore):
    buffer = np.zeros((2, 6), np.float32)
    restore()
    for x, y in batches:
        np.multiply(x.asnumpy(), 2, out=buffer)
        cell(ms.Tensor(buffer), y)


def copyto_scratch(cell, batches, rate, restore):
    buffer = np.zeros((2, 6), np.float32)
    restore()
    for x, y in batches:
        np.copyto(buffer, x.asnumpy())
        cell(ms.Tensor(buffer), y)


def filled_zero(cell, batches, rate, restore):
    buffer = np.zeros((2, 6), np.float32)
    restore()
    for x, y in batches:
        buffer.fill(0)
        buffer += x.asnumpy()
        cell(ms.Tensor(buffer), y)


class Line:
    def __init__(self):
        self.data = []

    def set_data(self, data):
        self.data = data


def plotted(cell, batches, rate, restore):
    line, xs = Line(), []
    restore()
    for x, y in batches:
        xs.append(float(cell(x, y)))
        line.set_data(xs)


def made_for_the_first_batch(cell, batches, rate, restore):
    mask = None
    restore()
    for x, y in batches:
        if mask is None or mask.shape != x.shape:
            mask = ops.ones(x.shape)
        cell(x * mask, y)


class Masked:
    def apply(self, x):
        if not hasattr(self, "mask"):
            self.mask = ops.ones(x.shape)
        return x * self.mask


def made_for_an_attribute(cell, batches, rate, restore):
    masked = Masked()
    restore()
    for x, y in batches:
        cell(masked.apply(x), y)


def table_for_the_longest_input(cell, batches, rate, restore):
    cached, table = 0, None
    restore()
    for x, y in batches:
        length = x.shape[1]
        if length > cached:
            cached = length
            table = ops.arange(length)
        cell(x * table, y)


def mask_like_the_batch(cell, batches, rate, restore):
    mask = None
    restore()
    for x, y in batches:
        if mask is None or mask.shape != x.shape:
            mask = ops.ones_like(x)
        cell(x * mask, y)


def size_taken_once(cell, batches, rate, restore):
    size = None
    restore()
    for x, y in batches:
        if not size:
            size = x.shape[0]
        cell(x * size, y)


def log_with_an_early_return(cell, batches, rate, restore):
    seen = []

    def log(loss):
        if len(seen) > 10:
            return loss
        seen.append(float(loss))
        return loss

    restore()
    for x, y in batches:
        cell(x * log(x), y)


def mask_by_get(cell, batches, rate, restore):
    masks = {}
    restore()
    for x, y in batches:
        mask = masks.get(x.shape)
        if mask is None:
            mask = masks[x.shape] = ops.ones(x.shape)
        cell(x * mask, y)


def mask_by_walrus(cell, batches, rate, restore):
    masks = {}
    restore()
    for x, y in batches:
        if (mask := masks.get(x.shape)) is None:
            mask = masks[x.shape] = ops.ones(x.shape)
        cell(x * mask, y)


@pytest.mark.parametrize(
    "loop",
    [
        default_rebound,
        early_return,
        cleared_and_filled,
        setdefault_cache,
        memo,
        scratch,
        out_scratch,
        copyto_scratch,
        filled_zero,
        plotted,
        made_for_the_first_batch,
        made_for_an_attribute,
        table_for_the_longest_input,
        mask_like_the_batch,
        size_taken_once,
        mask_by_get,
        mask_by_walrus,
        log_with_an_early_return,
    ],
    ids=lambda one: one.__name__,
)
def test_what_each_iteration_makes_anew_is_not_named(loop):
    assert Training().found(loop) == []


def counted_by_class(cell, batches, rate, restore):
    counts = {}
    restore()
    for x, y in batches:
        if y not in counts:
            counts[y] = 0
        counts[y] += 1
        cell(x * counts[y], y)


def grouped_by_class(cell, batches, rate, restore):
    groups = {}
    restore()
    for x, y in batches:
        groups.setdefault(y, []).append(x)
        cell(sum(groups[y]), y)


def added_to_a_buffer(cell, batches, rate, restore):
    buffer = np.zeros((2, 6), np.float32)
    restore()
    for x, y in batches:
        buffer[:] = buffer * 0.9 + x.asnumpy()
        cell(ms.Tensor(buffer), y)


def cleared_at_times(cell, batches, rate, restore):
    buffer = []
    restore()
    for x, y in batches:
        buffer.append(x)
        if len(buffer) == 4:
            cell(ops.stack(buffer), y)
            buffer.clear()


def baseline_of_the_first_loss(cell, batches, rate, restore):
    base = None
    restore()
    for x, y in batches:
        loss = cell(x, y)
        if base is None:
            base = float(loss)
        rate.set_data(rate * base)


def mask_drawn_for_the_first_batch(cell, batches, rate, restore):
    mask = None
    restore()
    for x, y in batches:
        if mask is None:
            mask = np.random.rand(*x.shape) > 0.3
        cell(x * mask, y)


def mean_of_the_first_batch(cell, batches, rate, restore):
    means = {}
    restore()
    for x, y in batches:
        if x.shape not in means:
            means[x.shape] = x.mean()
        cell(x - means[x.shape], y)


def counter_behind_a_skipped_size(cell, batches, rate, restore):
    since = 0
    restore()
    for x, y in batches:
        if x.shape[0] != 2:
            continue
        cell(x, y)
        since += 1
        if since == 5:
            since = 0
            rate.set_data(rate * 0.5)


def phase_behind_a_skipped_batch(cell, batches, rate, restore):
    phase = "warm"
    restore()
    for x, y in batches:
        if len(x) == 0:
            continue
        loss = cell(x if phase == "warm" else x * 2, y)
        if float(loss) < 1:
            phase = "main"


def full_batches(cell, batches, rate, restore):
    full = 0
    restore()
    for x, y in batches:
        if len(x) == 2:
            full += 1
        cell(x * full, y)


def stage_of_a_curriculum(cell, batches, rate, restore):
    stage, stages = 0, [1, 2, 3]
    restore()
    for x, y in batches:
        loss = float(cell(x * stages[stage], y))
        if loss < 1 and stage < len(stages) - 1:
            stage += 1


def first_step_alone(cell, batches, rate, restore):
    done = None
    restore()
    for x, y in batches:
        if done is None:
            cell(x * 0.1, y)
            done = 1
        else:
            cell(x, y)


def read_before_it_is_set(cell, batches, rate, restore):
    started = None
    restore()
    for x, y in batches:
        cell(x * (0.1 if started is None else 1), y)
        if started is None:
            started = True


def counts_in_a_default_by_name(cell, batches, rate, restore):
    def step(x, y, *, seen=[]):  # noqa: B006 - as people write it
        seen.append(1)
        return cell(x * len(seen), y)

    restore()
    for x, y in batches:
        step(x, y)


def counts_in_an_argument(cell, batches, rate, restore):
    kept = {"n": 0}

    def step(x, y, state):
        state["n"] += 1
        return cell(x * state["n"], y)

    restore()
    for x, y in batches:
        step(x, y, kept)


def counts_by_another_name(cell, batches, rate, restore):
    seen = []
    restore()
    for x, y in batches:
        same = seen
        same.append(1)
        cell(x * len(seen), y)


def counts_in_a_generator(cell, batches, rate, restore):
    count = [0]

    def scaled(rest):
        for x, y in rest:
            count[0] += 1
            yield x * count[0], y

    restore()
    for x, y in scaled(batches):
        cell(x, y)


def counts_in_a_namespace(cell, batches, rate, restore):
    args = argparse.Namespace(n=0)
    restore()
    for x, y in batches:
        args.n += 1
        cell(x * args.n, y)


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (counted_by_class, "counts"),
        (grouped_by_class, "groups"),
        (added_to_a_buffer, "buffer"),
        (cleared_at_times, "buffer"),
        (baseline_of_the_first_loss, "base"),
        (mask_drawn_for_the_first_batch, "mask"),
        (mean_of_the_first_batch, "means"),
        (counter_behind_a_skipped_size, "since"),
        (phase_behind_a_skipped_batch, "phase"),
        (full_batches, "full"),
        (stage_of_a_curriculum, "stage"),
        (first_step_alone, "done"),
        (read_before_it_is_set, "started"),
        (counts_in_a_default_by_name, "step (function)"),
        (counts_in_an_argument, "kept"),
        (counts_by_another_name, "seen"),
        (counts_in_a_generator, "count"),
        (counts_in_a_namespace, "args (Namespace)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_only_looks_like_a_cache_is_named(loop, name):
    (found,) = Training().found(loop)
    assert found.where == f"{loop.__name__}(): {name}"


class Noisy(list):
    """Draws whenever somebody iterates over it or asks for its length."""

    def __iter__(self):
        raise AssertionError("iterated")

    def __len__(self):
        raise AssertionError("measured")


def test_lists_of_the_users_are_not_iterated():
    noisy = Noisy([1.0, 2.0])

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            for one in noisy:
                cell(x * one * noisy[0], y)

    assert Training().found(loop) == []
