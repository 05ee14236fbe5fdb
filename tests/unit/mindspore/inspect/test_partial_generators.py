"""A state_dict() that stores a part of a generator's state is named; one that stores it in any whole way is not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ckptkit.mindspore.inspect import find_partial_generators


class Drawing:
    def __init__(self):
        self.rng = np.random.default_rng(3)


class BySingleKeys(Drawing):
    def state_dict(self):
        state = self.rng.bit_generator.state
        return {"state": str(state["state"]["state"]), "inc": str(state["state"]["inc"])}


class ByOneKey(Drawing):
    def state_dict(self):
        return {"state": self.rng.bit_generator.state["state"]}


class AsItIs(Drawing):
    def state_dict(self):
        return {"rng": self.rng.bit_generator.state}


class AsItIsByName(Drawing):
    def state_dict(self):
        state = self.rng.bit_generator.state
        print(state["state"]["inc"])
        return {"rng": state}


class ByAllKeys(Drawing):
    def state_dict(self):
        state = self.rng.bit_generator.state
        return {"state": state["state"], "half": [state["has_uint32"], state["uinteger"]]}


class Checked(Drawing):
    def state_dict(self):
        assert self.rng.bit_generator.state["bit_generator"] == "PCG64"
        return {"rng": self.whole()}

    def whole(self):
        return dict(self.rng.bit_generator.state)


class OfMersenne(ByOneKey):
    def __init__(self):
        self.rng = np.random.Generator(np.random.MT19937(3))


class OfAnother(Drawing):
    def state_dict(self):
        return {"state": self.rng.state["state"]}


@pytest.mark.parametrize("kind", [BySingleKeys, ByOneKey])
def test_a_part_is_named(kind):
    (found,) = find_partial_generators([("loader", kind())])
    assert found.where == "loader.state_dict()"
    assert "self.rng.bit_generator.state" in found.fix


class Antithetic(random.Random):
    """Gives each number, and then its mirror image."""

    mirror = None

    def random(self):
        self.mirror, last = (None, self.mirror) if self.mirror else (1 - super().random(), None)
        return last or 1 - self.mirror


class WithAllOfIt(Antithetic):
    def getstate(self):
        return super().getstate(), self.mirror


def test_what_a_class_adds_to_a_generator_is_named():
    (found,) = find_partial_generators([("rng", Antithetic(3))])
    assert found.where == "rng"
    assert "Antithetic adds mirror to the state of a generator" in found.why
    whole = [WithAllOfIt(3), random.Random(3), np.random.default_rng(3), np.random.RandomState(3)]
    assert [*find_partial_generators(("rng", one) for one in whole)] == []


@pytest.mark.parametrize("kind", [AsItIs, AsItIsByName, ByAllKeys, Checked, OfMersenne, OfAnother, Drawing, type(None)])
def test_the_whole_is_not_named(kind):
    assert [*find_partial_generators([("loader", kind())])] == []
