"""The advice of a finding can be followed: `ckptkit.attributes` is named only where it stores what is carried."""

from __future__ import annotations

import array
import collections
import enum
import types

import numpy as np
import pytest
from test_loops import Training

import ckptkit as ck
from ckptkit.mindspore.state.holders import fits


class Mode(enum.Enum):
    WARM, HOT = 1, 2


class Own:
    pass


VALUES = {
    "number": 1.0,
    "text": "warm",
    "array": np.zeros(2),
    "matrix of a subclass": np.zeros((2, 2)).view(np.matrix),
    "list": [1, 2],
    "dict": {"a": [1.0]},
    "deque": collections.deque([1]),
    "set": {1},
    "choice": Mode.WARM,
    "array of C": array.array("d", [1.0]),
    "own": Own(),
    "own in a list": [Own()],
}


@pytest.mark.parametrize(("factory", "by_attributes"), [(float, True), (Own, False)])
def test_attributes_are_not_advised_for_what_will_hold_objects(factory, by_attributes):
    """Nothing is in it yet, so that it could be stored now, and not at the first save."""

    def loop(cell, batches, rate, restore):
        kept = types.SimpleNamespace(meters=collections.defaultdict(factory))
        restore()
        for x, y in batches:
            held = kept.meters["loss"]
            loss = cell(x if held is None else x + 1, y)
            kept.meters["loss"] = loss

    found = [one for one in Training().found(loop) if "meters" in str(one)]
    assert found
    assert all(("ckptkit.attributes" in one.fix) == by_attributes for one in found)


def test_default_of_an_argument_is_no_attribute():
    """`ckptkit.attributes(smoothed, "history")` would not find it."""

    def smoothed(x, history=[1.0]):  # noqa: B006 - it is kept from call to call, which is the point
        history.append(0.9 * history[-1] + 0.1)
        return x * history[-1]

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            cell(smoothed(x), y)

    (found,) = Training().found(loop)
    assert "history" in str(found)
    assert "an object of your own" in found.fix


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("where", ["variable", "attribute"])
def test_attributes_are_advised_where_they_can_be_stored(kind, where):
    def variable(cell, batches, rate, restore):
        held = VALUES[kind]
        restore()
        for x, y in batches:
            loss = cell(x if held is None else x + 1, y)
            held = advance(held, loss)

    def attribute(cell, batches, rate, restore):
        kept = types.SimpleNamespace(held=VALUES[kind])
        restore()
        for x, y in batches:
            loss = cell(x if kept.held is None else x + 1, y)
            kept.held = advance(kept.held, loss)

    def advance(held, loss):
        return held if float(loss) > 1 else None

    (found,) = Training().found(variable if where == "variable" else attribute)
    assert ("ckptkit.attributes" in found.fix) == fits(VALUES[kind])
    assert fits(VALUES[kind]) or "an object of your own" in found.fix


class Controller:
    def __init__(self):
        self.gain, self.sum = 1.0, 0.0

    def step(self, loss):
        self.sum += loss
        self.gain = 1.0 - 0.01 * self.sum

    def state_dict(self):
        return {"gain": self.gain}

    def load_state_dict(self, state):
        self.gain = state["gain"]


@pytest.mark.parametrize("by", ["state_dict", "attributes"])
def test_object_that_is_stored_in_part_is_not_to_be_given_once_more(by):
    controller = Controller()
    given = controller if by == "state_dict" else ck.attributes(controller, "gain")

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            controller.step(float(cell(x * controller.gain, y)))

    (found,) = Training(controller=given).found(loop)
    assert "carries sum from" in found.why
    assert found.fix.startswith("Store it too")


class ByList(Controller):
    fields = ("gain",)

    def state_dict(self):
        return {name: getattr(self, name) for name in self.fields}

    def load_state_dict(self, state):
        for name in self.fields:
            setattr(self, name, state[name])


class ByItems(ByList):
    def load_state_dict(self, state):
        for name, value in state.items():
            setattr(self, name, value)


class WholeByList(ByList):
    fields = ("gain", "sum")


class Whole(Controller):
    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


class ByNamesFromElsewhere(ByList):
    def state_dict(self):
        return {name: getattr(self, name) for name in sorted(vars(self))}


class ListOfItsOwn(ByList):
    def __init__(self):
        super().__init__()
        self.fields = (*self.fields, "sum")


class ByParent(ByList):
    def state_dict(self):
        return {**super().state_dict(), "sum": self.sum}


class ByOtherNames(ByList):
    fields = ("ain", "um")

    def state_dict(self):
        return {name: getattr(self, {"ain": "gain", "um": "sum"}[name]) for name in self.fields}


class ByNoList(ByList):
    fields = ()


@pytest.mark.parametrize(
    ("kind", "is_named"),
    [
        *((kind, True) for kind in (ByList, ByItems)),
        *((kind, False) for kind in (WholeByList, Whole, ByNamesFromElsewhere, ListOfItsOwn, ByParent, ByOtherNames)),
    ],
)
def test_list_of_fields_says_what_is_stored(kind, is_named):
    controller = kind()

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            controller.step(float(cell(x * controller.gain, y)))

    found = Training(controller=controller).found(loop)
    assert ["carries sum from" in one.why for one in found] == [True] * is_named


def test_empty_list_of_fields_stores_nothing():
    controller = ByNoList()

    def loop(cell, batches, rate, restore):
        restore()
        for x, y in batches:
            controller.step(float(cell(x * controller.gain, y)))

    (found,) = Training(controller=controller).found(loop)
    assert "gain" in found.why


def test_object_of_an_installed_library_is_not_advised_in_part():
    qmc = pytest.importorskip("scipy.stats").qmc

    def loop(cell, batches, rate, restore):
        sobol = qmc.Sobol(2, seed=1)
        restore()
        for x, y in batches:
            cell(x + float(sobol.random(1)[0, 0]), y)

    found = Training().found(loop)
    assert found
    assert not any("ckptkit.attributes" in one.fix for one in found)
