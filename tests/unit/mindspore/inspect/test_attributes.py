"""Reading an object keeps nothing alive: not its class, nor what the methods of that hold; and whose code counts."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from ckptkit.mindspore.inspect.attributes import attributes_of
from ckptkit.mindspore.inspect.frames import running_frames


def view_of(weights):
    class View:
        __slots__ = ("at",)

        def __init__(self, at):
            self.at = at

        def value(self):
            return weights[self.at]

    return View(1)


def test_class_with_slots_is_not_kept():
    weights = np.ones(3)
    gone, one = weakref.ref(weights), view_of(weights)
    assert [*attributes_of(one)] == [("at", 1)]
    del weights, one
    gc.collect()
    assert gone() is None


def test_code_of_a_parallel_test_runner_is_no_users():
    """It would be read before each training, and what it holds searched."""
    files = [frame.f_code.co_filename for _, frame in running_frames()]
    assert __file__ in files
    assert not [one for one in files if "xdist" in one or "execnet" in one]
