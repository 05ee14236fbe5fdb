"""One observed training in a process, with what its checkpoint makes of the section that it stores."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np

from ckptkit.core.state_encoding import decode_tree, encode_tree
from ckptkit.mindspore.observe.observer import Observer
from ckptkit.mindspore.observe.value_kinds import Known
from ckptkit.mindspore.observe.walk_roots import Reached

globals()["__name__"] = "ckptkit.tests"  # its frames and objects are none of the user's


def through_checkpoint(value):
    """Return what a checkpoint makes of a value: JSON and tensors."""
    leaves = []
    tree = json.loads(json.dumps(encode_tree(value, "observed", leaves)))
    return decode_tree(tree, {leaf.name: np.array(leaf.array) for leaf in leaves})


def reached(**also):
    """Return what a training of nothing reaches, but ``also``."""
    nothing = dict.fromkeys(("cells", "given", "callbacks", "data", "batches"), ())
    fields = {**dict.fromkeys(field.name for field in dataclasses.fields(Reached)), **nothing}
    return Reached(**{**fields, "known": Known(), "data_state": dict, **also})


class Life:
    """Steps that an observer sees, from the section ``saved`` on; ``also`` are fields of `Reached`."""

    def __init__(self, saved=None, given=None, *, epoch_size=1000, ignore=(), **also):
        self.at, self.epoch_size = 0, epoch_size
        given = [*(given or {}).items()]
        self.observer = Observer(lambda: reached(given=given, by_model=True, **also), ignore=ignore)
        self.observer.load(saved)
        self.lost, self.differs = [], []

    def begin(self):
        self.lost, self.differs = self.observer.begin()
        return self

    def batch(self):
        if self.observer.has_begun:
            self.observer.ask_batch()
            self.observer.hand_out(ends_epoch=(self.at + 1) % self.epoch_size == 0)
        else:
            self.begin()

    def step(self, act=lambda: None):
        self.batch()
        act()
        self.end_step()

    def end_step(self):
        self.at += 1
        if self.observer.end_step(self.at // self.epoch_size):
            self.observer.look()

    def save(self):
        return through_checkpoint(self.observer.section(sys._getframe(1)))

    @property
    def stored(self):
        return {*self.observer.stored}

    @property
    def unstored(self):
        return self.observer.unstored
