"""Of long code, a stated part is read; what goes unread is said."""

from __future__ import annotations

import gc
import linecache
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from mindspore import nn
from support.training import begin_process
from test_loops import Training

from ckptkit.mindspore.inspect import find_in_steps_of_cells
from ckptkit.mindspore.inspect.loops.unread import changes

READ = 20_000  # expressions and statements, as docs/exactness.md says
PER_LINE = 3  # a statement, a call and its function; read twice in a loop


def function_of(name, text, monkeypatch):
    module = {"__name__": "users", "nn": nn}
    exec(compile(text, f"{name}.py", "exec"), module)  # noqa: S102 - code that is as long as is needed
    monkeypatch.setitem(linecache.cache, f"{name}.py", (1, None, text.splitlines(keepends=True), f"{name}.py"))
    return module[name]


def long_loop(lines, monkeypatch):
    text = "def loop(cell, batches, rate, restore):\n    seen = 0\n    restore()\n    for x, y in batches:\n"
    text += "        print()\n" * lines + "        seen += 1\n        cell(x * seen, y)\n"
    return function_of("loop", text, monkeypatch)


@pytest.mark.parametrize(
    ("lines", "where"),
    [(READ // (2 * PER_LINE) - 100, "loop(): seen"), (READ // PER_LINE, "loop()")],
    ids=["within", "beyond"],
)
def test_long_loop_is_read_as_far_as_is_stated(lines, where, monkeypatch):
    (found,) = Training().found(long_loop(lines, monkeypatch))
    assert (found.where, found.certain) == (where, False)
    assert ("too long" in found.why) == (where == "loop()")


def test_each_link_of_a_chain_is_read_once(monkeypatch):
    """If each link read the ones before it again, twenty would take a million expressions."""
    text = "def loop(cell, batches, rate, restore):\n    seen = 0\n    restore()\n    for x, y in batches:\n"
    text += f"        ''{'.strip()' * 20}\n        seen += 1\n        cell(x * seen, y)\n"
    (found,) = Training().found(function_of("loop", text, monkeypatch))
    assert (found.where, "too long" in found.why) == ("loop(): seen", False)


def test_tuple_of_numbers_is_read_like_any_list(monkeypatch):
    """Its items are not told apart, so that no item has the body read again."""
    lines = READ // (2 * PER_LINE) // 4
    text = (
        "def loop(cell, batches, rate, restore):\n    seen = 0\n    restore()\n    for n in (1, 2, 3, 4, 5, 6, 7, 8):\n"
    )
    text += "        print()\n" * lines + "    for x, y in batches:\n        seen += 1\n        cell(x * seen, y)\n"
    (found,) = Training().found(function_of("loop", text, monkeypatch))
    assert (found.where, "too long" in found.why) == ("loop(): seen", False)


def long_cell(lines, monkeypatch):
    text = "class Long(nn.Cell):\n    def construct(self, x):\n" + "        print()\n" * lines + "        return x\n"
    return function_of("Long", text, monkeypatch)()


def test_long_function_of_a_cell_is_said_to_be_unread(monkeypatch):
    begin_process()
    cell = nn.SequentialCell(long_cell(READ, monkeypatch), nn.Dense(2, 2))
    (found,) = find_in_steps_of_cells([cell], [])
    assert found.where == "0 (Long): construct()"
    assert "too long" in found.why


def test_what_holds_objects_of_a_library_is_looked_at_once(monkeypatch):
    """Not for each object again: mindyolo's loop was read for a minute, mostly because of `super().__init__()`."""
    root = ET.Element("losses")
    parts = [ET.SubElement(ET.SubElement(root, "epoch"), "loss") for _ in range(50)]
    others = [ET.Element("loss") for _ in range(50)]
    looks: list[object] = []
    written: list[str] = []

    def referents(one):
        looks.append(one)
        return gc.get_referents(one)

    monkeypatch.setattr(changes, "gc", SimpleNamespace(get_referents=referents))
    flow = SimpleNamespace(write=lambda place, sources, scope, whole: written.append(place))
    objects = SimpleNamespace(met_like=lambda one: [("root", root)], is_named=lambda one: False)
    told = changes.Changes(flow, objects, None)
    for one in [*parts, *others]:
        told._around(one, frozenset(), None)
    assert written == ["root"] * len(parts)
    assert len(looks) < 300
