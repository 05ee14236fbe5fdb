"""Objects that are given by name, and what their states are made of."""

from __future__ import annotations

import collections
import enum
import math
import random

import mindspore as ms
import numpy as np

import ckptkit as ck
from exactness.jobs.job import job
from exactness.jobs.outcome import Exact, Refused
from exactness.jobs.parts import EPOCHS, accumulating, slices


class Held:
    """An object whose state is one value that the loop changes."""

    def __init__(self, value, change):
        self.value, self.change = value, change

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def hold(run, held):
    cell = accumulating()

    def step(x, y):
        held.value = held.change(held.value)
        return cell(x, y)

    batches = ck.data.resumable(slices(), EPOCHS)
    with run.manager() as manager:
        state = ck.StateManager(cell, batches, held=held)
        run.begin(manager.restore(state))
        for x, y in batches:
            loss = step(x, y)
            run.step((x, y), loss, cell=cell, held=repr(held.value), kind=type(held.value).__name__)
            manager.step(state)


@job(Exact(), "graph")
def counts_by_numbers_and_pairs(run):
    def change(counts):
        key = len(counts) % 3
        return {**counts, key: counts.get(key, 0) + 1, (key, "pair"): [None, math.inf, True]}

    hold(run, Held({}, change))


@job(Exact(), "graph")
def python_generator_in_the_state(run):
    class Drawing(Held):
        def state_dict(self):
            return {"state": self.value[0]}

        def load_state_dict(self, state):
            self.value = (state["state"], 0.0)

    def change(value):
        rng = random.Random()
        rng.setstate(value[0])
        drawn = rng.gauss(0, 1)
        return rng.getstate(), drawn

    hold(run, Drawing((random.Random(3).getstate(), 0.0), change))


@job(Exact(), "graph")
def numbers_at_their_limits(run):
    def change(value):
        return {
            "large": value["large"] * 3 + 2**70,
            "small": value["small"] / 7,
            "negative zero": -0.0,
            "none": None,
            "text": value["text"] + "é\n\x00",
            "bytes": value["bytes"] + b"\xff\x00",
            "half": np.float16(value["small"]),
            "array": value["array"] + np.uint64(2**63),
        }

    first = {"large": 2**90, "small": 5e-310, "text": "", "bytes": b"", "array": np.zeros((2, 0, 3), np.uint64)}
    hold(run, Held(first, change))


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@job(Refused(("held", "Color")), "graph")
def member_of_an_enumeration(run):
    hold(run, Held(Color.RED, lambda color: Color.BLUE))


@job(Refused(("held", "deque")), "graph")
def deque_as_a_state(run):
    hold(run, Held(collections.deque([1.0], maxlen=4), lambda rows: rows))


@job(Refused(("held", "Tensor")), "pynative")
def tensor_as_a_state(run):
    hold(run, Held(ms.Tensor([1.0]), lambda tensor: tensor + 1))


@job(Refused(("held", "set")), "graph")
def set_as_a_state(run):
    hold(run, Held({"a"}, lambda names: {*names, str(len(names))}))


class Forgetful(Held):
    """Loads its state wrongly: into a copy."""

    def load_state_dict(self, state):
        dict(state)


@job(Refused(("held", "changed nothing"), "resume"), "graph")
def state_that_is_not_loaded(run):
    hold(run, Forgetful(0, lambda value: value + 1))


@job(Exact(), "graph")
def state_that_hands_out_its_own_list(run):
    def change(value):
        value.append(len(value))
        return value

    hold(run, Held([], change))


@job(Exact(), "graph")
def array_that_is_changed_in_place(run):
    def change(array):
        array += 1
        return array

    hold(run, Held(np.zeros(5), change))
