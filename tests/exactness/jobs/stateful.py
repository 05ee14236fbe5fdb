"""Objects that are given by name, and what their states are made of."""

from __future__ import annotations

import math
import random

import numpy as np

from exactness.jobs.parts import accumulating, slices
from exactness.jobs.run import job


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

    run.loop(cell, slices(), step, held=held)


@job("graph", default=True)
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
            3: [None, math.inf, True],
            (3, "pair"): (),
        }

    hold(
        run,
        Held(
            {"large": 2**90, "small": 5e-310, "text": "", "bytes": b"", "array": np.zeros((2, 0, 3), np.uint64)}, change
        ),
    )


@job("graph")
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


@job("graph")
def state_that_hands_out_its_own_list(run):
    def change(value):
        value.append(len(value))
        return value

    hold(run, Held([], change))


class Forgetful(Held):
    """Loads its state wrongly: into a copy."""

    def load_state_dict(self, state):
        dict(state)


@job("graph", refused=("held", "changed nothing"), by="resumed")
def state_that_is_not_loaded(run):
    hold(run, Forgetful(0, lambda value: value + 1))
