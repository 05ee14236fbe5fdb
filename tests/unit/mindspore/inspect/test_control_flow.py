"""Loops are told from other jumps back, and what may still run from what is over, in every Python."""

from __future__ import annotations

import sys

import pytest
from mindspore import nn

from ckptkit.mindspore.inspect.carried_attributes import carried
from ckptkit.mindspore.inspect.code.control_flow import flow_of
from ckptkit.mindspore.inspect.frames import loops_ahead, made_anew, variables_ahead

early = late = handler = handled = around = 0


def handled_before(at, see):
    try:
        at(early)
    except ValueError:
        at(handled)
    with at:
        at(around)
    see(sys._getframe(), around)
    return at(late)


def looped(at, see, do):
    for _ in at:
        try:
            do(early)
        except ValueError:
            do(handler)
    see(sys._getframe(), late)
    while at:
        with at:
            do(around)
    return late


def tried_again(at, see):
    while True:
        try:
            see(sys._getframe(), early)
            break
        except ValueError:
            continue
    return late


def named_as_in_the_module(at, see):
    see(sys._getframe(), late)
    at([early for early in at])  # noqa: C416
    for around in at:
        at(around)


class At:
    """Is called, entered, and has one item; is true once."""

    truths = 1

    def __call__(self, *_):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass

    def __iter__(self):
        return iter([1])

    def __bool__(self):
        self.truths -= 1
        return self.truths >= 0


def seen(function, *more):
    found = {}

    def see(frame, _):
        found["names"] = {name for name, _ in variables_ahead(frame)}
        found["in a loop"] = any(frame.f_lasti in part for part in loops_ahead(frame))
        found["loops"] = loops_ahead(frame)

    function(At(), see, *more)
    return found


def names_in(function, parts):
    of = flow_of(function.__code__).instructions
    return {one.argval for one in of if one.opname == "LOAD_GLOBAL" and any(one.offset in part for part in parts)}


def test_handled_errors_are_no_loops():
    found = seen(handled_before)
    assert not flow_of(handled_before.__code__).loops
    assert found["loops"] == []
    assert {"early", "around", "handled", "see"}.isdisjoint(found["names"])
    assert {"at", "late"} <= found["names"]


def test_loops_have_their_handlers_and_nothing_behind_them():
    found = seen(looped, print)
    assert not found["in a loop"]
    assert names_in(looped, found["loops"]) == {"around"}
    assert {"early", "handler"}.isdisjoint(found["names"])
    flow = flow_of(looped.__code__)
    parts = [names_in(looped, flow.ranges(loop)) for loop in flow.loops]
    assert {"early", "handler", "ValueError"} in parts
    assert not any("late" in each for each in parts)


def test_loop_that_only_an_error_repeats_is_one():
    found = seen(tried_again)
    assert found["in a loop"]
    assert names_in(tried_again, found["loops"]) >= {"early", "ValueError"}
    assert "late" not in names_in(tried_again, found["loops"])


def test_variable_without_a_value_is_not_the_modules():
    assert {"early", "around"}.isdisjoint(seen(named_as_in_the_module)["names"])


@pytest.mark.parametrize("function", [handled_before, looped, tried_again])
def test_handlers_run_by_errors_alone(function):
    flow = flow_of(function.__code__)
    plain = {one.argval for one in flow.instructions if one.offset in flow.without_errors}
    assert {"handler", "handled", "ValueError"}.isdisjoint(plain)
    assert {"early", "late"} <= plain


class Caught(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = self.failures = 0

    def construct(self, x):
        self.calls = self.calls + 1
        try:
            x = x.abs()
        except:  # noqa: E722 - of an error of any class
            self.failures = self.failures + 1
        return x


def test_what_an_error_alone_counts_is_not_carried():
    assert list(carried(Caught(), "construct")) == [("calls", 0)]


def test_variables_that_are_assigned_before_they_are_read():
    def loop(rows, sometimes, kept):
        left = here = 1
        frame = sys._getframe()
        found.append(made_anew(frame))
        for left, *_ in rows:
            if left:
                sometimes = left
            here = sometimes
            kept += here
        return inner()

    def inner():
        return found

    found = []
    loop([], 1, 0)
    assert found == [{"left", "here", "_"}]
