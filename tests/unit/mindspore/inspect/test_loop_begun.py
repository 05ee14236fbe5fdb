"""What a loop makes or defines between its restore and its first batch is named before that batch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from support.training import accumulation_cell, begin_process

import ckptkit as ck
from ckptkit.errors import ResumeError
from ckptkit.mindspore.state.manager import StateManager


class Training:
    """A start that is refused for what is found, before its first batch."""

    def __init__(self, strict):
        begin_process()
        self.cell = accumulation_cell()
        x = ms.Tensor(np.ones((2, 6)), ms.float32)
        self.batches = ck.data.resumable([(x, ms.Tensor(0.5))], 2)
        self.state = StateManager(self.cell, self.batches, strict=strict)

    def restore(self):
        self.state.begin("runs/digits")
        return self.state.progress()

    def train(self, loop):
        loop(self.cell, self.batches, self.cell.optimizer.learning_rate, self.restore)


def check_refused(loop):
    """The loop is refused before its first batch, for what it carries, takes or draws."""
    training = Training(strict=True)
    with pytest.raises(ResumeError, match=r"carries|taken after the restore|(draws|takes) from it"):
        training.train(loop)
    assert training.cell.counters.micro_steps == 0


class Plateau:
    def __init__(self):
        self.best, self.bad = math.inf, 0

    def step(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad == 5


def object_made_after_the_restore(cell, batches, rate, restore):
    restore()
    plateau = Plateau()
    for x, y in batches:
        if plateau.step(float(cell(x, y))):
            rate.set_data(rate * 0.5)


def object_made_in_a_block(cell, batches, rate, restore):
    restore()
    with np.errstate(all="raise"):
        plateau = Plateau()
        for _ in range(1):
            for x, y in batches:
                if plateau.step(float(cell(x, y))):
                    break


def generator_made_after_the_restore(cell, batches, rate, restore):
    restore()
    rng = np.random.default_rng(0)
    for x, y in batches:
        cell(x + rng.normal(), y)


def function_defined_after_the_restore(cell, batches, rate, restore):
    restore()
    calls = 0

    def step(x, y):
        nonlocal calls
        calls += 1
        return cell(x * calls, y)

    for x, y in batches:
        step(x, y)


def loop_in_a_function(cell, batches, rate, restore):
    def fit(rest):
        plateau = Plateau()
        for x, y in rest:
            if plateau.step(float(cell(x, y))):
                ops.assign(rate, rate * 0.5)

    restore()
    fit(batches)


def iterated_by_a_generator(cell, batches, rate, restore):
    def noisy(rest):
        rng = np.random.default_rng(0)
        for x, y in rest:
            yield x + rng.normal(), y

    restore()
    for x, y in noisy(batches):
        cell(x, y)


class Counter:
    def __init__(self, begin, *, factor=1.0):
        self.count, self.factor = begin, factor

    def scale(self):
        self.count += 1
        self.factor *= 0.5
        return self.count


class Falling(Counter):
    def scale(self):
        super().scale()
        return self.factor


def object_made_in_part_from_what_restore_returns(cell, batches, rate, restore):
    point = restore()
    falling = Falling(point.batches_delivered)
    for x, y in batches:
        cell(x * falling.scale(), y)


@dataclasses.dataclass
class Reached:
    epoch: int
    step: int = 0


def dataclass_made_in_part_from_what_restore_returns(cell, batches, rate, restore):
    point = restore()
    reached = Reached(point.epoch)
    for x, y in batches:
        reached.step += 1
        cell(x * reached.step * reached.epoch, y)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (object_made_in_part_from_what_restore_returns, "falling (Falling): the loop carries factor"),
        (dataclass_made_in_part_from_what_restore_returns, "reached (Reached): the loop carries step"),
        (object_made_after_the_restore, "plateau (Plateau): the loop carries bad"),
        (object_made_in_a_block, "plateau (Plateau): the loop carries bad"),
        (generator_made_after_the_restore, "rng (Generator)"),
        (function_defined_after_the_restore, "calls"),
        (loop_in_a_function, "plateau (Plateau): the loop carries bad"),
        (iterated_by_a_generator, "rng (Generator)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_is_made_after_the_restore_is_named(loop, words):
    training = Training(strict=True)
    with pytest.raises(ResumeError) as raised:
        training.train(loop)
    assert words in str(raised.value)
    assert training.cell.counters.micro_steps == 0


def begun_from_what_restore_returns(cell, batches, rate, restore):
    point = restore()
    seen = point.batches_delivered
    for x, y in batches:
        seen += 1
        cell(x * seen, y)


def object_made_from_what_restore_returns(cell, batches, rate, restore):
    point = restore()
    counter = Counter(point.batches_delivered)
    for x, y in batches:
        cell(x * counter.scale(), y)


def dataclass_made_from_what_restore_returns(cell, batches, rate, restore):
    point = restore()
    reached = Reached(point.epoch, step=point.batches_delivered)
    for x, y in batches:
        reached.step += 1
        reached.epoch += 1
        cell(x * reached.step * reached.epoch, y)


def namespace_made_from_what_restore_returns(cell, batches, rate, restore):
    point = restore()
    reached = types.SimpleNamespace(step=point.batches_delivered)
    for x, y in batches:
        reached.step += 1
        cell(x * reached.step, y)


def given_to_a_function(cell, batches, rate, restore):
    def fit(rest, begin):
        seen = begin
        for x, y in rest:
            seen += 1
            cell(x * seen, y)

    fit(batches, restore().batches_delivered)


def made_for_each_batch(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        plateau = Plateau()
        if plateau.step(float(cell(x, y))):
            rate.set_data(rate * 0.5)


def only_shown(cell, batches, rate, restore):
    restore()
    plateau = Plateau()
    for x, y in batches:
        if plateau.step(float(cell(x, y))):
            print("no better")


def taken_by_next(cell, batches, rate, restore):
    restore()
    it = iter(batches)
    while (batch := next(it, None)) is not None:
        cell(*batch)


def taken_from_a_generator(cell, batches, rate, restore):
    def doubled(rest):
        for x, y in rest:
            yield x * 2, y

    restore()
    it = doubled(batches)
    for _ in range(2):
        cell(*next(it))


def drawn_where_the_loop_begins(cell, batches, rate, restore):
    """Each start draws them again, before the loop and its saves."""

    def begun(batches):
        rng = np.random.default_rng(1)
        return batches if rng.normal() else []

    restore()
    for x, y in begun(batches):
        cell(x, y)


@pytest.mark.parametrize(
    "loop",
    [
        begun_from_what_restore_returns,
        drawn_where_the_loop_begins,
        object_made_from_what_restore_returns,
        dataclass_made_from_what_restore_returns,
        namespace_made_from_what_restore_returns,
        given_to_a_function,
        made_for_each_batch,
        only_shown,
        taken_by_next,
        taken_from_a_generator,
    ],
    ids=lambda one: one.__name__,
)
def test_what_needs_no_checkpoint_is_not_named_later(loop):
    training = Training(strict=True)
    training.train(loop)
    assert training.cell.counters.micro_steps == 2


def test_loop_of_a_called_function_is_read_once():
    """The frames around it are read, too, and call it."""

    def main():
        cell = accumulation_cell()
        batches = ck.data.resumable([(ms.Tensor(np.ones((2, 6)), ms.float32), ms.Tensor(0.5))], 2)
        with contextlib.nullcontext(StateManager(cell, batches, strict=True)) as state:
            state.begin("runs/digits")
            it = iter(batches)
            while (batch := next(it, None)) is not None:
                cell(*batch)
                state.progress()

    def script():
        main()

    begin_process()
    script()


def test_each_finding_is_told_once(caplog):
    def loop(cell, batches, rate, restore):
        seen = 0
        restore()
        plateau = Plateau()
        for x, y in batches:
            seen = seen + 1
            if plateau.step(float(cell(x * seen, y))):
                break

    with caplog.at_level(logging.WARNING, "ckptkit"):
        Training(strict=False).train(loop)
    told = [one.getMessage() for one in caplog.records]
    assert [any(word in one for one in told) for word in ("seen", "plateau")] == [True, True], told
    assert len(told) == 2, told


def put(table, at, value):
    table["bank"][at] = value


@pytest.mark.parametrize("by_name", [True, False], ids=["dict", "argument"])
def test_tensor_that_is_changed_by_another_name_is_named(by_name):
    bank = ms.Tensor(np.zeros((2, 6)), ms.float32)
    table = {"bank": bank}

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            if by_name:
                table["bank"][0] = x.mean(0)
            else:
                put(table, 0, x.mean(0))
            cell(x + bank, y)

    check_refused(loop)


def average_beside_a_generator_that_saves(cell, batches, rate, restore):
    def losses():
        restore()
        for x, y in batches:
            yield float(cell(x, y))

    mean = 0.0
    for loss in losses():
        mean = 0.9 * mean + 0.1 * loss
        rate.set_data(rate * mean)


def numbered_average_beside_a_generator(cell, batches, rate, restore):
    class Trainer:
        def losses(self):
            restore()
            for x, y in batches:
                yield float(cell(x, y))

    mean = 0.0
    for _, loss in enumerate(Trainer().losses()):
        mean = 0.9 * mean + 0.1 * loss
        rate.set_data(rate * mean)


@pytest.mark.parametrize("loop", [average_beside_a_generator_that_saves, numbered_average_beside_a_generator])
def test_what_the_consumer_of_a_saving_generator_keeps_is_named(loop):
    check_refused(loop)


def test_consumer_that_keeps_nothing_is_quiet():
    def loop(cell, batches, rate, restore):
        def losses():
            restore()
            for x, y in batches:
                yield float(cell(x, y))

        for loss in losses():
            logging.getLogger("test").info("%s", loss)

    Training(strict=True).train(loop)
