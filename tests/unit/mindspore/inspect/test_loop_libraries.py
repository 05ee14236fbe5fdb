"""What libraries do in a loop: their own code is not the user's, and what they do to a training is named."""

from __future__ import annotations

import importlib
import itertools
import sys

import numpy as np
import pytest
import rich.progress
import tqdm
from test_loops import Training

some_library = some_source = None  # the modules that the fixture writes


def budget_of_batches(cell, batches, rate, restore):
    restore()
    for x, y in itertools.islice(batches, 14):
        cell(x, y)


def budget_in_a_variable(cell, batches, rate, restore):
    budget = 14
    restore()
    for _, (x, y) in enumerate(itertools.islice(batches, 0, budget)):
        cell(x, y)


@pytest.mark.parametrize(
    ("loop", "where"),
    [
        (budget_of_batches, "itertools.islice()"),
        (budget_in_a_variable, "itertools.islice()"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_number_of_batches_that_begins_anew_is_named(loop, where):
    (found,) = Training().found(loop)
    assert found.where == f"{loop.__name__}(): {where}"
    assert "number - point.batches_delivered" in found.fix


def rest_of_a_budget(cell, batches, rate, restore):
    point = restore()
    for x, y in itertools.islice(batches, 14 - point.batches_delivered):
        cell(x, y)


def bar_of_progress(cell, batches, rate, restore):
    restore()
    for x, y in tqdm.tqdm(batches, "training", 16):
        cell(x, y)


def track_of_progress(cell, batches, rate, restore):
    restore()
    for x, y in rich.progress.track(batches, "training", 16):
        cell(x, y)


def all_batches(cell, batches, rate, restore):
    restore()
    for x, y in itertools.islice(batches, None):
        cell(x, y)


@pytest.mark.parametrize(
    "loop", [rest_of_a_budget, bar_of_progress, track_of_progress, all_batches], ids=lambda one: one.__name__
)
def test_all_batches_are_taken_without_a_word(loop):
    assert Training().found(loop) == []


LIBRARY = """
_calls = {"seen": 0}


def smooth(values):
    _calls["seen"] += 1
    return values * min(_calls["seen"], 1)


def trained(cell, x, y):
    _calls["seen"] += 1
    return cell(x * _calls["seen"], y)


class Distribution:
    def __init__(self):
        self.state = 1.0

    def rvs(self, random_state=None):
        self.state = self.state * 0.5
        return self.state


beta = Distribution()
"""


@pytest.fixture
def libraries(tmp_path, monkeypatch):
    """An installed library, and the same module as the user's."""
    for folder, name in (("site-packages", "some_library"), ("src", "some_source")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(LIBRARY)
        monkeypatch.syspath_prepend(tmp_path / folder)
        monkeypatch.setitem(globals(), name, importlib.import_module(name))
    yield
    for name in ("some_library", "some_source"):
        sys.modules.pop(name, None)


def function_of_a_library(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(some_library.smooth(x), y)


def object_of_a_library(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * some_library.beta.rvs(), y)


@pytest.mark.parametrize("loop", [function_of_a_library, object_of_a_library], ids=lambda one: one.__name__)
def test_code_of_libraries_is_not_the_users(loop, libraries):
    assert Training().found(loop) == []


def function_of_the_users(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(some_source.smooth(x), y)


def object_of_the_users(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell(x * some_source.beta.rvs(), y)


def object_that_the_user_made(cell, batches, rate, restore):
    own = some_library.Distribution()
    restore()
    for x, y in batches:
        cell(x * own.rvs(), y)


def library_that_trains(cell, batches, rate, restore):
    seen = 0
    restore()
    for x, y in batches:
        some_library.trained(cell, x * seen, y)
        seen += 1  # noqa: SIM113 - what is to be read


def generator_by_name(cell, batches, rate, restore):
    rng = np.random.default_rng(0)
    restore()
    for x, y in batches:
        cell(x * some_library.beta.rvs(random_state=rng), y)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (function_of_the_users, "_calls"),
        (object_of_the_users, "some_source.beta (Distribution)"),
        (object_that_the_user_made, "own (Distribution)"),
        (library_that_trains, "seen"),
        (generator_by_name, "rng (Generator)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_libraries_do_to_a_training_is_named(loop, words, libraries):
    found = Training().found(loop)
    assert any(words in one.where for one in found), found


def test_linked_package_is_the_users(tmp_path, monkeypatch, libraries):
    (tmp_path / "site-packages" / "some_link.py").symlink_to(tmp_path / "src" / "some_source.py")
    monkeypatch.setitem(globals(), "some_source", importlib.import_module("some_link"))
    (found,) = Training().found(object_of_the_users)
    assert found.where == "object_of_the_users(): some_source.beta (Distribution)"
    sys.modules.pop("some_link")
