"""A walk reaches what the next process can reach again, gives each object one path, and runs nothing of the user's."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import itertools
import threading
import types
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from unit.mindspore.observe.hostile import armed, objects
from unit.mindspore.observe.test_packing import Frozen, Phase, Slotted

from ckptkit.mindspore.observe.paths import Root
from ckptkit.mindspore.observe.value_kinds import Known
from ckptkit.mindspore.observe.walk import Walk


def walked(known=None, **values):
    walk = Walk(known or Known())
    for name, value in values.items():
        walk.add(Root("global", "__main__", name), value)
    walk.run()
    return walk


def texts(**values):
    return {path: node.text for path, node in walked(**values).nodes.items()}


class Meter:
    shared = [{}]  # noqa: RUF012 - state of a class

    def __init__(self):
        self.total = 0

    def add(self, weight=[0.5], *, scale=[2.0]):  # noqa: B006 - what is changed in a default
        self.total += 1

    @property
    def mean(self):
        raise AssertionError("runs the user's code")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor([1.0]), name="weight")
        self.dense = nn.Dense(2, 2)
        self.calls = 0


def closure_of(value):
    def function(batch):
        return value, batch

    return function


def generator_of(start):
    count = start
    while True:
        count += 1
        yield count


MODULE = types.ModuleType("users_module")
exec(  # noqa: S102
    "best = {'loss': 1.0, 'at': [2]}\nother = 3\n\ndef read():\n    return best\n", vars(MODULE)
)


def started():
    generator = generator_of(1)
    next(generator)
    return generator


context = contextvars.ContextVar("temperature")
context.set([1.0, []])

PATHS = [
    ([1, [2]], {"x[0]": "int 1", "x[1]": None}),
    ({"a": [], 3: 1, (1, "b"): 2}, {"x['a']": None, "x[3]": "int 1", "x[(1, 'b')]": "int 2"}),
    ({Frozen("k", 0.5): 4}, {"x[#0]": "int 4"}),
    (collections.deque([[], 1]), {"x[1]": "int 1"}),
    (Meter(), {"x": "<Meter>", "x.total": "int 0", "x.Meter.shared[0]": None}),
    (Meter(), {"x.Meter.add(0)": None, "x.Meter.add(scale)": None}),
    (Slotted(5, []), {"x.count": "int 5"}),
    (Meter().add, {"x.__self__.total": "int 0", "x()(0)": None}),
    (functools.partial(closure_of(1), [[7]]), {"x.func.value": "int 1", "x.args[0][0]": None}),
    (closure_of({"n": 1}), {"x.value": None}),
    (context, {"x.get()[0]": "float 1.0"}),
    (started(), {"x.count": "int 2"}),
    (Phase.WARM, {"x": "Phase.WARM"}),
    (Net(), {"x.calls": "int 0", "x.dense": "<Dense>"}),
    (MODULE.read, {"users_module.best": None}),
    (functools.cache(closure_of([4])), {"x().value": None}),
    (iter([Meter()]), {"x[0][0][0].total": "int 0", "x[1]": "int 0"}),
    (types.SimpleNamespace(a=1), {"x.a": "int 1"}),
]


@pytest.mark.parametrize(("value", "expected"), PATHS, ids=[type(value).__name__ for value, _ in PATHS])
def test_each_part_has_its_path(value, expected):
    found = texts(x=value)
    assert expected.keys() <= found.keys(), sorted(found)
    assert {path: found[path] for path, text in expected.items() if text} == {p: t for p, t in expected.items() if t}


def test_only_globals_that_reachable_code_names_are_reached():
    assert "users_module.other" not in texts(x=MODULE.read)


def test_the_parts_of_an_object_have_one_path_the_shortest():
    meter, held = Meter(), [[], {}]
    meter.held = held
    walk = walked(deep={"a": {"b": [meter]}}, near=[held])
    assert [path for path, node in walk.nodes.items() if node.value is held[0]] == ["near[0][0]"]


def test_a_cycle_ends():
    meter, items, table = Meter(), [], {}
    meter.owner = meter
    items += [items, meter]
    table.update(own=table, meter=meter)
    for value in (items, table):
        assert any(path.endswith(".total") for path in walked(x=value).nodes)


def test_a_walk_is_bounded_in_objects_and_depth():
    chain = Meter()
    for _ in range(40):
        above = Meter()
        above.below = chain
        chain = above
    deep = walked(x=chain)
    assert max(path.count(".below") for path in deep.nodes) == 14
    wide = walked(x=[[[Meter()] for _ in range(250)] for _ in range(250)])
    assert len(wide.seen) <= 20_001


def test_of_a_long_list_the_first_items_are_walked():
    found = walked(x=[[] for _ in range(1000)]).nodes
    assert {"x[0]", "x[255]"} <= found.keys()
    assert "x[256]" not in found


@pytest.mark.parametrize("make", [dict, list])
@pytest.mark.parametrize("index", [0, 300, 999])
def test_a_change_of_any_array_in_a_large_container_is_seen(make, index):
    arrays = [np.zeros(1) for _ in range(1000)]
    held = arrays if make is list else dict(enumerate(arrays))
    before = texts(x=held)
    arrays[index] += 1
    assert texts(x=held) != before


def test_a_long_list_of_numbers_is_read_whole():
    before = [*range(10_000)]
    for index in (0, 5000, 9999):
        after = [*before]
        after[index] = -1
        assert texts(x=before) != texts(x=after)
    assert texts(x=bytearray(b"1")) != texts(x=bytearray(b"2"))


def test_what_checkpoints_store_is_left_out():
    net, meter = Net(), Meter()
    stored = Known(stored={id(parameter) for parameter in net.get_parameters()}, parts={id(meter): {"total"}})
    found = walked(stored, net=net, meter=meter).nodes
    assert not any(isinstance(node.value, ms.Parameter) for node in found.values())
    assert "meter.total" not in found
    assert "meter" in found


def test_a_stored_parameter_in_a_container_is_named_by_its_parameter():
    weight = Net().weight
    known = Known(stored={id(weight)})
    assert walked(known, x=[weight, []]).nodes["x[0]"].text == "the parameter weight"
    both = {"first": Net().weight, "second": Net().weight}
    known = Known(parameters=both, stored={*map(id, both.values())})
    texts = {walked(known, x=order).nodes["x"].text for order in ([*both.values()], [*both.values()][::-1])}
    assert texts == {"list of 2 parameters str 'first second'", "list of 2 parameters str 'second first'"}


def test_objects_of_the_data_are_named_and_not_walked():
    rows = [[1], [2]]
    walk = walked(Known(data={id(rows): "Loader.rows"}), x=[rows])
    assert {path: node.text for path, node in walk.nodes.items() if path != "x"} == {"x[0]": "of the data: Loader.rows"}


@pytest.mark.parametrize("value", [threading.Lock(), threading.RLock(), threading.Condition(), threading.Thread()])
def test_locks_and_threads_are_left_out(value):
    assert texts(x=[value]).keys() == {"x"}


def hold_in_frame(value):
    yield value
    yield value


def running_with(held):
    running = hold_in_frame(held)
    next(running)
    return running


PLACES = [
    *(lambda held: [held, 1], lambda held: (held,), lambda held: {"a": held}, lambda held: {held: 1}, closure_of),
    *(lambda held: {held}, lambda held: frozenset({held}), lambda held: collections.deque([held])),
    *(lambda held: functools.partial(closure_of, held), lambda held: iter([held]), lambda held: map(str, [held])),
    *(lambda held: types.SimpleNamespace(held=held), lambda held: type("Users", (), {"held": held})),
    *(running_with, lambda held: itertools.chain([held]), lambda held: held),
    lambda held: functools.lru_cache(closure_of(held)),
]


def placed(held):
    for place in PLACES:
        with contextlib.suppress(TypeError):  # a set holds neither dicts nor lists
            yield place(held)


@pytest.mark.parametrize("index", range(len(objects())), ids=lambda index: f"{index}")
def test_nothing_of_the_users_runs(index):
    for value in [*placed(objects()[index])]:
        with armed():
            first, again = walked(x=value).nodes, walked(x=value).nodes
            assert {path: node.text for path, node in first.items()} == {
                path: node.text for path, node in again.items()
            }
        assert "x" in first


def test_iterators_and_files_stay_where_they_are(tmp_path):
    (tmp_path / "text").write_text("line\n" * 5)
    running, items, pairs, count = started(), iter([1, 2]), zip([1, 2], "ab", strict=True), itertools.count(3)
    with open(tmp_path / "text", "rb") as file, open(tmp_path / "text") as lines:
        file.readline()
        held = [running, items, pairs, count, file, lines]
        before = texts(x=held)
        assert texts(x=held) == before
        file.readline()
        assert (file.tell(), lines.readline()) == (10, "line\n")
        for iterator, value in ((running, 3), (items, 1), (pairs, (1, "a")), (count, 3), (file, b"line\n")):
            before = texts(x=held)
            assert next(iterator) == value
            assert texts(x=held) != before, iterator


def test_a_walk_keeps_nothing_alive_in_frames():
    class Weight:
        pass

    def train():
        weight = Weight()
        watch = weakref.ref(weight)
        yield watch
        del weight
        yield watch

    running = train()
    watch = next(running)
    walked(x=running)
    next(running)
    assert watch() is None
