"""Buffers, caches and records of a loop are not taken for state that it carries."""

from __future__ import annotations

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
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_only_looks_like_a_cache_is_named(loop, name):
    (found,) = Training().found(loop)
    assert found.where == f"{loop.__name__}(): {name}"
