"""Whatever statement carries a variable of a loop on, it is named if training depends on it."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import itertools
import json
import sys
import time
from collections import deque
from datetime import datetime
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore.experimental import optim
from test_loops import Training


def raise_ends_it(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        if seen == 5:
            raise RuntimeError("enough")


def raise_in_a_function(cell, batches, rate, restore):
    def check(count):
        if count == 5:
            raise RuntimeError("enough")

    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        check(seen)


def continue_skips(cell, batches, rate, restore):
    turn = 0
    restore()
    for x, y in batches:
        turn += 1
        if turn % 2:
            continue
        cell(x, y)


def finally_counts(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        try:
            cell(x * seen, y)
        finally:
            seen += 1


def except_counts(cell, batches, rate, restore):
    failures = 0
    restore()
    for x, y in batches:
        try:
            cell(x, y)
        except ArithmeticError:
            failures += 1
        if failures > 3:
            break


def enumerate_from_one(cell, batches, rate, restore):
    restore()
    for at, (x, y) in enumerate(batches, 1):
        cell(x * at, y)


def dunder_next(cell, batches, rate, restore):
    other = itertools.cycle([1.0, 2.0])
    restore()
    for x, y in batches:
        cell(x * other.__next__(), y)


def deque_that_rotates(cell, batches, rate, restore):
    shifts = deque([1.0, 2.0, 3.0])
    restore()
    for x, y in batches:
        cell(x * shifts[0], y)
        shifts.rotate()


def stack_that_shrinks(cell, batches, rate, restore):
    left = [1.0, 2.0, 3.0]
    restore()
    for x, y in batches:
        cell(x * left[-1], y)
        left.pop()


def optimizer_of_its_own(cell, batches, rate, restore):
    optimizer = optim.SGD(cell.trainable_params(), 0.1)
    seen = 0
    restore()
    for x, y in batches:
        gradients = cell.grad(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        if seen % 2:
            optimizer(gradients)


def rate_that_is_set(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        if seen == 5:
            cell.optimizer.set_lr(0.1)


def branch_that_may_not_write(cell, batches, rate, restore):
    hidden = 0.0
    restore()
    for x, y in batches:
        if batches.epoch:
            hidden = 1.0
        cell(x * hidden, y)
        hidden = 2.0


def else_of_a_loop(cell, batches, rate, restore):
    seen = 0
    restore()
    while batches.epoch < 2:
        for x, y in batches:
            cell(x, y)
        else:  # noqa: PLW0120 - what is to be read
            seen += 1
            if seen == 5:
                rate.set_data(rate * 0.5)


def walrus_counts(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        if (seen := seen + 1) == 5:
            break


def scaled(x, *, by):
    return x * by


def given_by_name(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(scaled(x, by=seen), y)
        seen += 1  # noqa: SIM113 - what is to be read


def key_of_a_dict(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x * min({seen + at: at for at in (1, 2)}), y)
        seen += 1  # noqa: SIM113 - what is to be read


def rest_of_a_list(cell, batches, rate, restore):
    scales = [1.0, 2.0, 3.0]
    restore()
    for x, y in batches:
        first, *scales = [*scales[1:], scales[0]]
        cell(x * first, y)


def else_of_a_try(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        try:
            cell(x * seen, y)
        except ArithmeticError:
            break
        else:
            seen += 1


def parameter_set_by_index(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        if seen == 5:
            rate[0] = 0.1


def attribute_of_a_parameter(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        rate.requires_grad = seen > 5


def taken_in_a_condition(cell, batches, rate, restore):
    other = itertools.cycle([True, False])
    restore()
    for x, y in batches:
        cell(x * len([one for one in (1, 2) if next(other)]), y)


def within_an_else(cell, batches, rate, restore):
    if rate is None:
        cell = None
    else:
        seen = 0
        restore()
        for x, y in batches:
            cell(x * seen, y)
            seen += 1  # noqa: SIM113 - what is to be read


def copy_that_is_augmented(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        scale = 0.5 * seen
        scale += 1.0
        cell(x * scale, y)
        seen += 1  # noqa: SIM113 - what is to be read


def first_of_two(count):
    try:
        return 1.0 * count
    except ArithmeticError:
        return 0.0


def second_of_two(count):
    try:
        return 1.0
    except ArithmeticError:
        return 1.0 * count


def returned_first(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x * first_of_two(seen), y)
        seen += 1  # noqa: SIM113 - what is to be read


def returned_later(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x * second_of_two(seen), y)
        seen += 1  # noqa: SIM113 - what is to be read


def written_in_the_else(cell, batches, rate, restore):
    seen, turn, kept = 0, 0, SimpleNamespace(scale=1.0)
    restore()
    for x, y in batches:
        if batches.epoch:
            kept.scale = 1.0 * turn
        else:
            kept.scale = 0.5 * seen
        cell(x * kept.scale, y)
        seen += 1  # noqa: SIM113 - what is to be read
        turn += 2


def item_of_a_list(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        scales = [1.0, 1.0]
        scales[0] = 0.5 * seen
        scales[1] = 2.0
        cell(x * scales[0], y)
        seen += 1  # noqa: SIM113 - what is to be read


def within_a_finally(cell, batches, rate, restore):
    seen = 0
    try:
        print(rate)
    finally:
        restore()
        for x, y in batches:
            cell(x * seen, y)
            seen += 1


def counted_by_an_inner_function(cell, batches, rate, restore):
    seen = 0

    def count():
        nonlocal seen
        seen += 1

    restore()
    for x, y in batches:
        cell(x * seen, y)
        count()


def second_except_counts(cell, batches, rate, restore):
    failures = 0
    restore()
    for x, y in batches:
        try:
            cell(x, y)
        except KeyError:
            print("none there")
        except ArithmeticError:
            failures += 1
        if failures > 3:
            break


def taken_in_a_with(cell, batches, rate, restore):
    other = itertools.cycle([1.0, 2.0])
    restore()
    for x, y in batches:
        with contextlib.nullcontext(next(other)) as scale:
            cell(x * scale, y)


def returns_out_of_an_inner_loop(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        for limit in (5, 7):
            if seen == limit:
                return


def place_in_a_list(cell, batches, rate, restore):
    seen, scales = 0, [1.0, 2.0, 3.0]
    restore()
    for x, y in batches:
        cell(x * scales[seen % 3], y)
        seen += 1  # noqa: SIM113 - what is to be read


def item_of_an_item(cell, batches, rate, restore):
    table = [[0.0]]
    restore()
    for x, y in batches:
        cell(x * table[0][0], y)
        table[0][0] = 1.0 - table[0][0]


def chosen_function_takes(cell, batches, rate, restore):
    other = itertools.cycle([1.0, 2.0])

    def taken():
        return next(other)

    restore()
    for x, y in batches:
        cell(x * (taken if batches.epoch < 5 else float)(), y)


def number_of_iterations(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        scale = 1.0
        for _ in range(seen):
            scale = 2.0
        cell(x * scale, y)
        seen += 1  # noqa: SIM113 - what is to be read


def queue_that_shrinks(cell, batches, rate, restore):
    left = deque([1.0, 2.0, 3.0])
    restore()
    for x, y in batches:
        cell(x * left[0], y)
        left.popleft()


def taken_by_a_lambda(cell, batches, rate, restore):
    other = itertools.cycle([1.0, 2.0])
    taken = lambda: next(other)  # noqa: E731 - what is to be read
    restore()
    for x, y in batches:
        cell(x * taken(), y)


def warm_up_of(count):
    if count < 3:
        return 0.5
    return 1.0


def condition_of_a_return(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x * warm_up_of(seen), y)
        seen += 1  # noqa: SIM113 - what is to be read


def subject_of_a_match(cell, batches, rate, restore):
    phase = "warm"
    restore()
    for x, y in batches:
        match phase:
            case "warm":
                if float(cell(x * 0.5, y)) < 1.0:
                    phase = "main"
            case _:
                cell(x, y)


def written_in_a_case(cell, batches, rate, restore):
    scale = 1.0
    restore()
    for x, y in batches:
        loss = cell(x * scale, y)
        match float(loss):
            case value if value > 1.0:
                scale *= 0.5
            case value:
                scale = value * scale


def name_in_a_pattern(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        match (x, seen):
            case [_, at]:
                cell(x * at, y)
        seen += 1  # noqa: SIM113 - what is to be read


def guard_of_a_case(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        match float(cell.scale):
            case _ if seen > 3:
                cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read


def case_that_continues(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        seen += 1
        match x:
            case None:
                pass
            case _ if seen == 5:
                continue
        cell(x, y)


def within_a_case(cell, batches, rate, restore):
    seen = 0
    match rate:
        case None:
            cell = None
        case _:
            restore()
            for x, y in batches:
                cell(x * seen, y)
                seen += 1


def within_an_except(cell, batches, rate, restore):
    seen = 0
    try:
        print(rate.no_such_thing)
    except AttributeError:
        restore()
        for x, y in batches:
            cell(x * seen, y)
            seen += 1


def deleted_items(cell, batches, rate, restore):
    left = [1.0, 2.0, 3.0]
    restore()
    for x, y in batches:
        cell(x * left[-1], y)
        del left[-1]


def taken_in_an_assert(cell, batches, rate, restore):
    other = itertools.cycle([1.0, 2.0])
    restore()
    for x, y in batches:
        cell(x, y)
        assert (scale := next(other)) > 0.0  # noqa: RUF018 - what is to be read
        cell(x * scale, y)


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (subject_of_a_match, "phase"),
        (written_in_a_case, "scale"),
        (name_in_a_pattern, "seen"),
        (guard_of_a_case, "seen"),
        (case_that_continues, "seen"),
        (within_a_case, "seen"),
        (within_an_except, "seen"),
        (deleted_items, "left"),
        (taken_in_an_assert, "other (cycle)"),
        (queue_that_shrinks, "left"),
        (taken_by_a_lambda, "other (cycle)"),
        (condition_of_a_return, "seen"),
        (place_in_a_list, "seen"),
        (item_of_an_item, "table"),
        (chosen_function_takes, "other (cycle)"),
        (number_of_iterations, "seen"),
        (counted_by_an_inner_function, "seen"),
        (second_except_counts, "failures"),
        (taken_in_a_with, "other (cycle)"),
        (returns_out_of_an_inner_loop, "seen"),
        (within_a_finally, "seen"),
        (written_in_the_else, "seen"),
        (item_of_a_list, "seen"),
        (copy_that_is_augmented, "seen"),
        (returned_first, "seen"),
        (returned_later, "seen"),
        (raise_ends_it, "seen"),
        (raise_in_a_function, "seen"),
        (continue_skips, "turn"),
        (finally_counts, "seen"),
        (except_counts, "failures"),
        (enumerate_from_one, "enumerate()"),
        (dunder_next, "other (cycle)"),
        (deque_that_rotates, "shifts"),
        (stack_that_shrinks, "left"),
        (optimizer_of_its_own, "seen"),
        (rate_that_is_set, "seen"),
        (branch_that_may_not_write, "hidden"),
        (else_of_a_loop, "seen"),
        (walrus_counts, "seen"),
        (given_by_name, "seen"),
        (key_of_a_dict, "seen"),
        (rest_of_a_list, "scales"),
        (else_of_a_try, "seen"),
        (parameter_set_by_index, "seen"),
        (attribute_of_a_parameter, "seen"),
        (taken_in_a_condition, "other (cycle)"),
        (within_an_else, "seen"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_every_statement_that_carries_is_read(loop, name):
    found = Training().found(loop)
    assert f"{loop.__name__}(): {name}" in [one.where for one in found]


def method_in_a_variable(cell, batches, rate, restore):
    draw = np.random.default_rng(2).random
    restore()
    for x, y in batches:
        cell(x * float(draw()), y)


def function_with_its_arguments(cell, batches, rate, restore):
    noise = functools.partial(np.random.default_rng(2).normal, 0, 0.1)
    restore()
    for x, y in batches:
        cell(x + float(noise()), y)


def count_beside_the_batches(cell, batches, rate, restore):
    restore()
    for number, (x, y) in zip(itertools.count(1), batches, strict=False):
        cell(x / number, y)


class WarmUp:
    def __init__(self):
        self.steps = 0

    def __call__(self, rate):
        self.steps += 1
        rate.set_data(rate * self.steps)


def hooks_of_a_registry(cell, batches, rate, restore):
    hooks = {"warm": WarmUp()}
    restore()
    for x, y in batches:
        for hook in hooks.values():
            hook(rate)
        cell(x, y)


TURN = contextvars.ContextVar("TURN", default=1)


def variable_of_a_context(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        TURN.set(TURN.get() + 1)
        cell(x / TURN.get(), y)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (method_in_a_variable, "draw"),
        (function_with_its_arguments, "noise"),
        (count_beside_the_batches, "itertools.count(1)"),
        (hooks_of_a_registry, "steps"),
        (variable_of_a_context, "TURN"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_a_loop_calls_is_read(loop, words):
    (found,) = Training().found(loop)
    assert words in f"{found.where}: {found.why}"


def test_number_of_batch_is_begun_by_restore():
    (found,) = Training().found(enumerate_from_one)
    assert "enumerate(batches, point.batches_delivered)" in found.fix


def reader_begun_again(cell, batches, rate, restore):
    other = iter([1.0, 2.0])
    restore()
    for x, y in batches:
        scale = next(other, None)
        if scale is None:
            other = iter([1.0, 2.0])
            scale = next(other)
        cell(x * scale, y)


def test_reader_begun_again_is_named_once():
    (found,) = Training().found(reader_begun_again)
    assert "takes from it" in found.why


def number_that_is_restored(cell, batches, rate, restore):
    point = restore()
    for at, (x, y) in enumerate(batches, point.batches_delivered):
        cell(x * at, y)


def number_that_is_restored_by_name(cell, batches, rate, restore):
    point = restore()
    for at, (x, y) in enumerate(batches, start=point.batches_delivered):
        cell(x * at, y)


def count_that_is_restored(cell, batches, rate, restore):
    point = restore()
    for number, (x, y) in zip(itertools.count(point.batches_delivered + 1), batches, strict=False):
        cell(x / number, y)


def read_before_the_loop_only(cell, batches, rate, restore):
    begin = 3
    restore()
    for x, y in itertools.islice(batches, begin, None):
        cell(x, y)
        begin = 0


def loaded_from_a_file(cell, batches, rate, restore):
    restore()
    with open("best.json") as file:
        best = json.load(file)
    for x, y in batches:
        loss = float(cell(x, y))
        if loss < best:
            best = loss
            rate.set_data(rate * 0.5)


def asked_of_a_clock(cell, batches, rate, restore):
    last = time.time()
    restore()
    for x, y in batches:
        cell(x, y)
        if time.time() - last > 600:
            last = time.time()
            rate.set_data(rate * 0.5)


def asked_of_a_clock_by_name(cell, batches, rate, restore):
    last = monotonic()
    restore()
    for x, y in batches:
        cell(x, y)
        if monotonic() - last > 600:
            last = monotonic()
            rate.set_data(rate * 0.5)


def written_by_a_library(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        cell(x, y)
        seen += 1  # noqa: SIM113 - what is to be read
        print(json.dumps({"seen": seen}))


def asked_of_a_calendar(cell, batches, rate, restore):
    last = datetime.now()
    restore()
    for x, y in batches:
        cell(x, y)
        if datetime.now().hour != last.hour:
            last = datetime.now()
            rate.set_data(rate * 0.5)


def global_generator_by_name(cell, batches, rate, restore):
    rng = np.random.mtrand._rand
    restore()
    for x, y in batches:
        cell(x + rng.normal(), y)


def drawn_before_the_loop(cell, batches, rate, restore):
    rng = np.random.default_rng(0)
    restore()
    shift = rng.normal()
    for x, y in batches:
        cell(x + shift, y)


def written_by_both_branches(cell, batches, rate, restore):
    scale = 0.0
    restore()
    for x, y in batches:
        if batches.epoch:  # noqa: SIM108 - both statements are to be read
            scale = 1.0
        else:
            scale = 2.0
        cell(x * scale, y)


@pytest.mark.parametrize(
    "loop",
    [
        number_that_is_restored,
        read_before_the_loop_only,
        count_that_is_restored,
        number_that_is_restored_by_name,
        loaded_from_a_file,
        asked_of_a_clock,
        asked_of_a_clock_by_name,
        written_by_a_library,
        asked_of_a_calendar,
        global_generator_by_name,
        drawn_before_the_loop,
        written_by_both_branches,
    ],
    ids=lambda one: one.__name__,
)
def test_what_clock_or_file_decides_is_not_named(loop):
    assert Training().found(loop) == []


def kept_apart_by_a_match(cell, batches, rate, restore):
    shown = 0
    restore()
    for x, y in batches:
        match float(cell(x, y)):
            case value if value > 1.0:
                shown += 1
            case _:
                scale = 0.5
                cell(x * scale, y)
        print(shown)


def test_what_a_match_only_counts_is_not_named():
    assert Training().found(kept_apart_by_a_match) == []


TRY_STAR = """
def counted_by_groups(cell, batches, rate, restore):
    failures = 0
    restore()
    for x, y in batches:
        try:
            cell(x, y)
        except* ArithmeticError:
            failures += 1
        if failures > 3:
            break
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="except* is of Python 3.11")
def test_groups_of_exceptions_are_read(tmp_path, monkeypatch):
    (tmp_path / "grouped.py").write_text(TRY_STAR)
    monkeypatch.syspath_prepend(tmp_path)
    found = Training().found(importlib.import_module("grouped").counted_by_groups)
    assert [one.where for one in found] == ["counted_by_groups(): failures"]


def best_weights_put_back(cell, batches, rate, restore):
    best, kept = 9.0, None
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        if loss < best:
            best, kept = loss, [one.asnumpy() for one in cell.get_parameters()]
    for one, value in zip(cell.get_parameters(), kept, strict=True):
        one.set_data(value)


def test_what_a_loop_leaves_to_later_training_is_named():
    found = Training().found(best_weights_put_back)
    assert {one.where for one in found} == {f"best_weights_put_back(): {name}" for name in ("best", "kept")}


def best_is_shown_at_the_end(cell, batches, rate, restore):
    best, last = 9.0, None
    restore()
    for x, y in batches:
        loss = float(cell(x, y))
        last = x
        if loss < best:
            best = loss * 1.0
    print(best)
    cell(last, last)


def test_what_is_shown_after_a_loop_is_not_named():
    assert Training().found(best_is_shown_at_the_end) == []
