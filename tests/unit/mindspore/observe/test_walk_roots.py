"""A look begins at what the resumed run will read before it writes: variables, globals, callbacks, cells, threads."""

from __future__ import annotations

import sys

import pytest
from mindspore import nn
from unit.mindspore.observe.lives import reached

from ckptkit.mindspore.observe.value_kinds import Known
from ckptkit.mindspore.observe.walk import Walk
from ckptkit.mindspore.observe.walk_roots import Roots, users_frames

globals()["__name__"] = "ckptkit.tests"  # the frames of tests are none of the user's; those of scripts are


class Counting:
    __module__ = "users_script"

    def __init__(self):
        self.count = 0


def paths_of(source, **also):
    """The roots that are seen from ``look()`` in a script, last."""
    seen = []
    roots, fields = Roots(), reached(**also)

    def look():
        walk = Walk(fields.known)
        # What runs the tests has frames of its own below these, and other tests may have left threads.
        frames = [frame for frame in users_frames(sys._getframe(1)) if frame.f_globals is module]
        roots.add_to(walk, fields, frames, at_batch=True)
        walk.run()
        of_others = ("thread",) if "threading" not in module else ()
        begins = [node for node in walk.nodes.values() if node.parent is None and node.step.kind not in of_others]
        seen[:] = [str(node.step) for node in begins if not node.text.startswith("function")]

    module = {"__name__": "users_script", "look": look}
    exec(compile(source, "users_script.py", "exec"), module)  # noqa: S102
    return {*seen}


LOOP = """
def train():
    kept, dead, gone = 1, 2, 3
    for step in range(2):
        look()
        fresh = step
        kept += fresh
    return kept
train()
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (LOOP, {"train(): kept", "train(): step"}),
        ("kept, dead = 1, 2\nfor step in range(1):\n    look()\n    print(end=str(kept))\n", {"users_script.kept"}),
        ("kept = 1\ndef f():\n    return kept\nfor _ in range(1):\n    look()\n    f()\n", {"users_script.kept"}),
        (
            "kept = 1\ndef f():\n    for _ in 'a':\n        look()\n        print(end=str(kept))\nf()",
            {"users_script.kept"},
        ),
        (
            "with open('/dev/null') as file:\n    for _ in 'a':\n        look()\n        file.read()",
            {"users_script.file"},
        ),
        ("best = {}\nwhile not best:\n    look()\n    best['a'] = 1\n", {"users_script.best"}),
    ],
)
def test_variables_read_before_written_and_named_globals_are_roots(source, expected):
    assert paths_of(source) == expected


def test_callbacks_cells_and_given_objects_are_roots_by_name_and_order():
    callbacks = [Counting(), Counting()]
    found = paths_of(
        "look()", callbacks=callbacks, cells=[("", nn.Dense(1, 1)), ("ema", nn.Dense(1, 1))], given=[("m", Counting())]
    )
    assert found == {"Counting()", "Counting#2()", "Dense()", "ema()", "stateful['m']"}


def test_variables_of_other_threads_of_the_users_are_roots():
    source = """
import threading
ready, over = threading.Event(), threading.Event()

def work():
    mean = 0.5
    while not over.is_set():
        ready.set()
        over.wait(10)
        mean += 1

thread = threading.Thread(target=work)
thread.start()
ready.wait(10)
look()
over.set()
thread.join()
"""
    assert any("mean" in path for path in paths_of(source))


def test_iterators_of_the_users_around_the_batches_are_roots():
    def batches():
        yield from ()

    running = batches()
    walk, roots = Walk(Known()), Roots()
    around = enumerate(running)
    roots.add_to(walk, reached(batches=[running]), [], at_batch=False)
    walk.run()
    found = [str(node.step) for node in walk.nodes.values() if node.parent is None and node.step.kind == "iterator"]
    assert found == ["enumerate around the batches"]
    assert next(around, None) is None
