"""What a carried value begins from: a position goes on after a resume, values of weights and of cells do not."""

from __future__ import annotations

import functools

import mindspore as ms
import pytest
from mindspore import ops
from test_loops import Training


def velocities_like_weights(cell, batches, rate, restore):
    restore()
    velocities = [ops.zeros_like(one) for one in cell.weights]
    for x, y in batches:
        cell(x + velocities[0].sum(), y)
        velocities = [0.9 * one + 1 for one in velocities]


def averages_of_weights(cell, batches, rate, restore):
    restore()
    averages = [one.value().copy() for one in cell.weights]
    for x, y in batches:
        cell(x + averages[0].sum(), y)
        averages = [0.9 * one + 0.1 * weight for one, weight in zip(averages, cell.weights, strict=True)]


def hidden_state_of_a_size_of_the_network(cell, batches, rate, restore):
    restore()
    hidden = ops.zeros((2, cell.network.hidden.in_channels))
    for x, y in batches:
        cell(x + hidden, y)
        hidden = ops.tanh(x + hidden)


def stepper(cell):
    def step(scale, batch):
        x, y = batch
        cell(x * scale, y)
        return 0.9 * scale

    return step


def folded_by_a_function_that_is_made_there(cell, batches, rate, restore):
    restore()
    functools.reduce(stepper(cell), batches, 1.0)


class Labels:
    def __init__(self):
        self.value, self.made_in = 0.0, None

    def refresh(self, epoch, cell):
        if self.made_in == epoch:
            return
        self.value = float(cell.weights[0].sum())
        self.made_in = epoch

    def refresh_sometimes(self, epoch, cell):
        if epoch % 2:
            return
        self.value = float(cell.weights[0].sum())


def made_anew_each_epoch(cell, batches, rate, restore):
    labels = Labels()
    restore()
    for x, y in batches:
        labels.refresh(batches.epoch, cell)
        cell(x + labels.value, y)


def made_anew_in_some_epochs(cell, batches, rate, restore):
    labels = Labels()
    restore()
    for x, y in batches:
        labels.refresh_sometimes(batches.epoch, cell)
        cell(x + labels.value, y)


def made_unless_the_step_is_skipped(cell, batches, rate, restore):
    scale = ms.Tensor(1.0)
    restore()
    for step, (x, y) in enumerate(batches):
        for at in range(2):
            if step % 2 == at:
                continue
            scale = scale * 0.9
        cell(x * scale, y)


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (velocities_like_weights, "velocities"),
        (averages_of_weights, "averages"),
        (hidden_state_of_a_size_of_the_network, "hidden"),
        (folded_by_a_function_that_is_made_there, "functools.reduce"),
        (made_anew_each_epoch, "labels (Labels)"),
        (made_anew_in_some_epochs, "labels (Labels)"),
        (made_unless_the_step_is_skipped, "scale"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_does_not_go_on_after_a_resume_is_named(loop, where):
    assert f"{loop.__name__}(): {where}" in {one.where for one in Training().found(loop)}


def position_that_goes_on(cell, batches, rate, restore):
    step = restore().batches_delivered
    for x, y in batches:
        cell(x * 0.9**step, y)
        step += 1


def made_in_every_step_from_weights(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        before = [one.value().copy() for one in cell.weights]
        cell(x + before[0].sum(), y)


def made_in_every_step_or_left(cell, batches, rate, restore):
    labels = Labels()
    restore()
    for x, y in batches:
        labels.value = 0.0
        labels.refresh_sometimes(batches.epoch, cell)
        cell(x + labels.value, y)


def position_of_the_optimizer(cell, batches, rate, restore):
    restore()
    step = int(cell.optimizer.global_step.asnumpy()[0])
    for x, y in batches:
        cell(x * 0.9**step, y)
        if cell.updated:
            step += 1


def rate_that_is_written_back(cell, batches, rate, restore):
    restore()
    now = float(rate.asnumpy())
    for x, y in batches:
        cell(x, y)
        now *= 0.5
        rate.set_data(ms.Tensor(now, ms.float32))


@pytest.mark.parametrize(
    "loop",
    [
        *(position_that_goes_on, made_in_every_step_from_weights, made_in_every_step_or_left),
        *(position_of_the_optimizer, rate_that_is_written_back),
    ],
    ids=lambda one: one.__name__,
)
def test_what_goes_on_or_is_made_anew_is_not_named(loop):
    assert Training().found(loop) == []
