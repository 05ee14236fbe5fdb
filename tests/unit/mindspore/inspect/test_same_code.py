"""The code of cells that are alike is read once, and of all others as before."""

from __future__ import annotations

import sys
import types

import pytest
from mindspore import nn, ops
from support.training import begin_process

from ckptkit.mindspore.inspect import find
from ckptkit.mindspore.inspect.same_code import Alike


class Layer(nn.Cell):
    """Calls what it was given, by itself, through an object or through another cell."""

    def __init__(self, function, *, through=None):
        super().__init__()
        self.dense = nn.Dense(2, 2)
        self.width = 2
        if through == "object":
            self.held = types.SimpleNamespace(function=function)
        elif through == "cell":
            self.held = Layer(function)
        else:
            self.function = function
        self.through = through

    def construct(self, x):
        if self.through is not None:
            return self.held.function(self.dense(x), self.width)
        return self.function(self.dense(x), self.width)


def calls_of(found):
    """How many Python functions finding takes."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        find(found)
    finally:
        sys.setprofile(None)
    return count


def test_each_further_layer_costs_few_calls():
    begin_process()
    few, many = (nn.SequentialCell([Layer(ops.mul) for _ in range(count)]) for count in (10, 60))
    find(few)  # what is read once in a process
    cells = 2 * 50
    assert (calls_of(many) - calls_of(few)) / cells < 400


def test_cells_that_hold_each_other_have_keys():
    one, other = Layer(ops.mul), Layer(ops.mul)
    one._cells["other"], other._cells["other"] = other, one
    alike = Alike()
    assert alike.key(one) != alike.key(nn.Dense(2, 2))


def test_layers_whose_weights_were_drawn_are_alike():
    one, other = (nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.Dense(2, 2)) for _ in range(2))
    alike = Alike()
    assert alike.key(one) == alike.key(other)


@pytest.mark.parametrize(("depth", "same"), [(0, True), (1, True), (2, False), (None, False)])
def test_cells_further_below_count_by_their_class(depth, same):
    one, other = (nn.SequentialCell(Layer(function, through="cell")) for function in (ops.mul, ops.dropout))
    alike = Alike(depth)
    assert (alike.key(one) == alike.key(other)) == same


@pytest.mark.parametrize("through", [None, "object", "cell"])
@pytest.mark.parametrize("first", [0, 1])
def test_layers_with_other_functions_are_told_apart(through, first):
    begin_process(mode="graph")  # which draws otherwise after a resume
    functions = [ops.mul, ops.dropout]
    layers = [Layer(functions[(first + number) % 2], through=through) for number in range(6)]
    found = {one.where.partition(" ")[0].partition(".")[0] for one in find(nn.SequentialCell(layers))}
    assert found == {str(number) for number in range(6) if functions[(first + number) % 2] is ops.dropout}
