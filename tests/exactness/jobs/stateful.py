"""An object that is given by name, with all that a state may hold."""

from __future__ import annotations

import math

import numpy as np

from exactness.jobs.parts import accumulating, slices
from exactness.jobs.run import job


class Held:
    """Its state is one value that the loop changes."""

    def __init__(self):
        self.value = {
            "large": 2**90,
            "small": 5e-310,
            "text": "",
            "bytes": b"",
            "array": np.zeros((2, 0, 3), np.uint64),
        }

    def change(self):
        self.value = {
            "large": self.value["large"] * 3 + 2**70,
            "small": self.value["small"] / 7,
            "negative zero": -0.0,
            "none": None,
            "text": self.value["text"] + "é\n\x00",
            "bytes": self.value["bytes"] + b"\xff\x00",
            "half": np.float16(self.value["small"]),
            "array": self.value["array"] + np.uint64(2**63),
            3: [None, math.inf, True],
            (3, "pair"): (),
        }

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@job("graph", default=True)
def numbers_at_their_limits(run):
    cell, held = accumulating(), Held()

    def step(x, y):
        held.change()
        return cell(x, y)

    run.loop(cell, slices(), step, held=held)
