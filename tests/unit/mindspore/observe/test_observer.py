"""What training changes is stored and put back, what cannot be stored is named, and nothing else is touched."""

from __future__ import annotations

import collections
import copy
import ctypes
import enum
import graphlib
import sys
import threading
import types
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from unit.mindspore.observe.hostile import armed, objects, running
from unit.mindspore.observe.lives import Life


class Meter:
    kept = 0

    def __init__(self, **attributes):
        self.total = 0
        vars(self).update(attributes)

    def add(self):
        self.total += 1


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.calls = 0


def lives(make, act, steps=4, **options):
    """Train, save, and go on in what is made anew; return the objects of the new life, and it."""
    given = make()
    life = Life(None, given, **options)
    for _ in range(steps):
        life.step(lambda: act(given))
    next_life = make()
    return next_life, life, Life(life.save(), next_life, **options).begin()


@pytest.mark.parametrize("at", [1, 2, 3, 4, 7, 8, 9, 17])
def test_changes_are_seen_after_1_2_4_8_steps(at):
    meter = Meter()
    life, seen = Life(given={"meter": meter}), None
    for step in range(1, 40):
        life.step(lambda: meter.add() if life.at + 1 == at else None)
        seen = seen or (step if life.stored else None)
    assert seen == next(power for power in (1, 2, 4, 8, 16, 32) if power >= at)


def test_changes_are_seen_at_the_end_of_an_epoch_and_before_a_save():
    for epoch_size, at in ((5, 5), (1000, None)):
        meter = Meter()
        life = Life(given={"meter": meter}, epoch_size=epoch_size)
        for step in range(1, 8):
            life.step(meter.add if step == 5 else lambda: None)
            assert (step == at or not at or step > at) == bool(life.stored) or not at
        assert life.save()["slots"]
        assert life.stored == {"stateful['meter'].total"}


class Reservoir(list):
    offered = 0


def described(value):
    if isinstance(value, Meter):
        return {name: described(part) for name, part in vars(value).items()}
    if isinstance(value, (dict, list, collections.deque)):
        parts = value.items() if isinstance(value, dict) else value
        return type(value).__name__, [described(part) for part in parts]
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return [*map(described, value)] if isinstance(value, tuple) else value


def weight():
    return ms.Parameter(ms.Tensor([1.0, 2.0]), name="weight", requires_grad=False)


def count(holder):
    holder.calls = getattr(holder, "calls", 0) + 1


def calls_of(holder):
    return getattr(holder, "calls", None)


# Methods of the classes of locks assign their attributes, as those of MindSpore's classes assign settings.
CHANGES = [
    ("total", lambda: 0, lambda meter: meter.add(), described),
    ("losses", list, lambda meter: meter.losses.append(0.5), described),
    ("best", lambda: {"loss": 9.0}, lambda meter: meter.best.update(loss=0.25, new=[1]), described),
    ("tags", lambda: {1}, lambda meter: meter.tags.add(2), described),
    ("mean", lambda: np.zeros(3), lambda meter: meter.mean.__iadd__(1), described),
    ("recent", lambda: collections.deque(maxlen=3), lambda meter: meter.recent.append(Meter(total=7)), described),
    ("last", lambda: collections.deque([1.0], 1), lambda meter: meter.last.append(meter.last[0] + 1), described),
    ("center", lambda: ms.Tensor([0.0]), lambda meter: setattr(meter, "center", meter.center + 1), described),
    ("weight", weight, lambda meter: meter.weight.set_data(meter.weight + 1), lambda held: (held.name, held.asnumpy())),
    ("generator", lambda: np.random.default_rng(1), lambda meter: meter.generator.random(), described),
    ("inner", Meter, lambda meter: meter.inner.add(), described),
    ("nested", lambda: {"a": [Meter()]}, lambda meter: meter.nested["a"][0].add(), described),
    ("late", lambda: None, lambda meter: setattr(meter, "late", [1, 2]), described),
    ("reservoir", Reservoir, lambda meter: count(meter.reservoir), calls_of),
    ("local", threading.local, lambda meter: count(meter.local), calls_of),
    ("space", types.SimpleNamespace, lambda meter: count(meter.space), calls_of),
    ("event", threading.Event, lambda meter: meter.event.set(), threading.Event.is_set),
    ("slots", lambda: threading.Semaphore(9), lambda meter: meter.slots.acquire(), lambda slots: slots._value),
    (
        "sorter",
        lambda: graphlib.TopologicalSorter({1: [2]}),
        lambda meter: meter.sorter.add(1, 2),
        lambda sorter: sorter._node2info[1].npredecessors,
    ),
]


@pytest.mark.parametrize(("name", "make", "act", "read"), CHANGES, ids=[name for name, *_ in CHANGES])
def test_what_changes_below_an_object_is_put_back_and_nothing_else(name, make, act, read):
    given, next_life = ({"meter": Meter(**{name: make()}, constant=[7])} for _ in range(2))
    life = Life(None, given)
    for _ in range(4):
        life.step(lambda: act(given["meter"]))
    constant = next_life["meter"].constant
    resumed = Life(life.save(), next_life).begin()
    held = make(), vars(given["meter"])[name], vars(next_life["meter"])[name]
    before, expected, restored = (repr(read(value)) for value in held)
    assert restored == expected != before
    assert (resumed.lost, resumed.differs, life.unstored) == ([], [], {})
    assert next_life["meter"].constant is constant
    assert all(path.startswith(f"stateful['meter'].{name}") for path in life.stored)


class Regime(enum.Enum):
    EXPLORE = 1


def test_attributes_of_enum_members_are_stored():
    given = {"meter": Meter(regime=Regime.EXPLORE)}
    life = Life(None, given)
    life.step(lambda: setattr(Regime.EXPLORE, "spent", 2))
    saved = life.save()
    del Regime.EXPLORE.spent
    Life(saved, given).begin()
    assert Regime.EXPLORE.spent == 2


def test_array_and_its_view_stay_one():
    def make():
        values = np.zeros(3)
        return {"meter": Meter(view=np.lib.stride_tricks.sliding_window_view(values, 2), values=values)}

    def act(given):
        given["meter"].values[:] += 1

    given, _, _ = lives(make, act)
    assert given["meter"].view.tolist() == [[4, 4], [4, 4]]
    act(given)
    assert given["meter"].view.tolist() == [[5, 5], [5, 5]]


def test_view_of_an_array_that_no_look_sees_is_named():
    def make():
        return {"meter": Meter(view=np.broadcast_to(np.zeros(3), (2, 3)))}

    _, _, resumed = lives(make, lambda given: given["meter"].view.base.__iadd__(1))
    assert resumed.lost == [("stateful['meter'].view", "shows an array that is not stored")]


@pytest.mark.parametrize(("before", "after"), [({1: 2}, [7]), ([1], {7: 8}), ([1], {7}), ({1}, [7])])
def test_content_of_another_kind_is_not_put_back_but_named(before, after):
    life = Life(None, {"meter": Meter(held=before)})
    life.step(before.clear)
    given = {"meter": Meter(held=copy.copy(after))}
    resumed = Life(life.save(), given).begin()
    assert resumed.lost == [("stateful['meter'].held", f"a {type(after).__name__} in this process")]
    assert given["meter"].held == after


class Bucket(ctypes.Structure):
    _fields_ = (("hits", ctypes.c_int),)


def test_two_paths_to_one_list_lead_to_one_list_again():
    """Also to one that does not change."""

    def make():
        return {"a": Meter(items=None, current=None), "b": Meter(items=None, kept=[1])}

    def act(given):
        given["a"].items = given["b"].items = [*(given["a"].items or []), 1]
        given["a"].current = given["b"].kept

    next_life, _, _ = lives(make, act)
    assert next_life["a"].items == [1, 1, 1, 1]
    assert next_life["a"].items is next_life["b"].items
    assert next_life["a"].current is next_life["b"].kept


def sharing(make):
    value = make()
    return {"meter": Meter(first=value, second=value)}


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize(
    "make", [Meter, list, lambda: [[1], [2]], lambda: np.zeros(3)], ids=["object", "list", "nested", "array"]
)
def test_what_was_one_object_and_is_two_stays_two(make, name):
    def act(given):
        value = copy.deepcopy(getattr(given["meter"], name))
        vars(value).update(total=5) if type(value) is Meter else value.__iadd__([7])
        setattr(given["meter"], name, value)

    given = sharing(make)
    life = Life(None, given)
    life.step(lambda: act(given))
    Life(life.save(), now := sharing(make)).begin()
    next_life = now["meter"]
    assert next_life.first is not next_life.second
    for attribute in ("first", "second"):
        actual, expected = getattr(next_life, attribute), getattr(given["meter"], attribute)
        assert repr(vars(actual) if make is Meter else actual) == repr(vars(expected) if make is Meter else expected)


def test_new_objects_are_not_taken_for_those_whose_memory_they_have():
    def act(given):  # each takes the memory that the one before leaves
        owner = given["owner"]
        owner.first = Meter(total=owner.first.total + 1)
        owner.second = Meter(total=owner.second.total + 10)

    for steps in 5 * (1, 2, 3, 4):  # which memory that is differs from time to time
        next_life, _, _ = lives(lambda: {"owner": Meter(first=Meter(), second=Meter())}, act, steps)
        assert (next_life["owner"].first.total, next_life["owner"].second.total) == (steps, 10 * steps)


def test_of_an_object_that_replaces_its_like_only_what_changed_is_stored():
    def act(given):  # a lock could not be stored
        given["owner"].meter = Meter(total=given["owner"].meter.total + 1, lock=threading.Lock())

    next_life, life, _ = lives(lambda: {"owner": Meter(meter=Meter(lock=threading.Lock()))}, act)
    assert (life.stored, life.unstored) == ({"stateful['owner'].meter.total"}, {})
    assert next_life["owner"].meter.total == 4


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_objects_that_change_places_and_content_keep_both(steps):
    def swap(given):
        owner = given["owner"]
        owner.first, owner.second = owner.second, owner.first
        owner.first.total += 1

    def make():
        return {"owner": Meter(first=Meter(total=0), second=Meter(total=70))}

    next_life, _, _ = lives(make, swap, steps)
    expected = make()
    for _ in range(steps):
        swap(expected)
    totals = [(given["owner"].first.total, given["owner"].second.total) for given in (next_life, expected)]
    assert totals[0] == totals[1]


@pytest.mark.parametrize("names", [("items", "best"), ("best", "items")])
def test_the_best_of_a_list_that_is_sorted_is_the_same_object_again(names):
    def make():
        items = [Meter(total=number) for number in range(3)]
        parts = {"items": items, "best": None}
        return {"owner": Meter(**{name: parts[name] for name in names}, lowest=items[0])}

    def act(given):
        owner = given["owner"]
        for item in owner.items:
            item.total *= 2
        owner.items.sort(key=lambda item: -item.total)
        owner.best = owner.items[0]

    owner = lives(make, act)[0]["owner"]
    assert [item.total for item in owner.items] == [32, 16, 0]
    assert owner.best is owner.items[0]
    assert owner.lowest is owner.items[2]


@pytest.mark.parametrize("pattern", ["stateful['meter'].total", "*.total", "*"])
def test_ignored_paths_are_neither_stored_nor_named(pattern):
    next_life, life, resumed = lives(lambda: {"meter": Meter()}, lambda given: given["meter"].add(), ignore=[pattern])
    assert (life.stored, life.unstored, next_life["meter"].total) == (set(), {}, 0)
    assert (resumed.lost, resumed.differs) == ([], [])


def test_ignored_objects_are_neither_stored_nor_named():
    meter, other = Meter(lock=threading.Lock()), Meter()
    life = Life(given={"meter": meter, "other": other}, ignore=[meter])
    for _ in range(2):
        life.step(lambda: (meter.add(), other.add()))
    assert (life.stored, life.unstored) == ({"stateful['other'].total"}, {})


@pytest.mark.parametrize(
    ("make", "act"),
    [
        (running, lambda meter: next(meter.held)),
        (lambda: np.zeros((1 << 24) + 8, np.uint8), lambda meter: meter.held.__iadd__(1)),
        (lambda: np.array([None], object), lambda meter: setattr(meter, "held", np.array([[None]], object))),
        (lambda: np.zeros(2, complex), lambda meter: meter.held.__iadd__(1)),
        (lambda: map(abs, range(99)), lambda meter: next(meter.held)),
        (Bucket, lambda meter: setattr(meter.held, "hits", meter.held.hits + 1)),
    ],
)
def test_what_cannot_be_stored_is_named_and_does_not_end_the_training(make, act):
    meter = Meter(held=make())
    life = Life(given={"meter": meter})
    for _ in range(2):
        life.step(lambda: (act(meter), meter.add()))
    assert life.save()["unstored"]
    assert [path.startswith("stateful['meter'].held") for path in life.unstored] == [True]
    assert life.stored == {"stateful['meter'].total"}


def test_what_changes_after_step_is_named():
    meter = Meter()
    life = Life(given={"meter": meter})
    for _ in range(3):
        life.step(meter.add)
    assert life.unstored == {}
    life.step()
    meter.add()
    life.batch()
    assert life.unstored == {"stateful['meter'].total": "changes after step()"}


class Rows:
    def __init__(self):
        self.at, self.bonus = 0, 0


def test_what_data_change_themselves_is_not_stored_and_what_steps_change_in_them_is_named():
    for changes, named in ((False, {}), (True, {"Rows.bonus": "belongs to the data, but the steps change it"})):
        rows = Rows()
        life = Life(given={}, data=[rows])
        for _ in range(4):
            life.batch()
            rows.at += 1  # as the next batch is read
            if life.observer.has_begun:
                life.observer.hand_out(ends_epoch=False)
            rows.bonus += changes
            life.end_step()
        life.batch()
        assert (life.stored, life.unstored) == (set(), named)


def test_start_values_that_differ_are_named_with_both():
    _, life, _ = lives(lambda: {"meter": Meter(limit=0.5)}, lambda given: given["meter"].add())
    resumed = Life(life.save(), {"meter": Meter(limit=None)}).begin()
    assert resumed.differs == [("stateful['meter'].limit", "float 0.5", "NoneType None")]


def test_a_path_that_is_gone_is_named_and_the_others_are_put_back():
    def act(given):
        given["meter"].add()
        given["meter"].inner.add()

    _, life, _ = lives(lambda: {"meter": Meter(inner=Meter())}, act)
    next_life = Meter(inner=None)
    before = dict(vars(next_life))
    resumed = Life(life.save(), {"meter": next_life}).begin()
    assert [path for path, _ in resumed.lost] == ["stateful['meter'].inner.total"]
    assert vars(next_life) == {**before, "total": 4}


def test_a_reference_that_is_gone_changes_nothing():
    def make():
        return {"owner": Meter(items=[]), "other": Meter()}

    def act(given):
        given["owner"].items = [len(given["owner"].items), given["other"]]

    _, life, _ = lives(make, act)
    next_life = Meter(items=[5])
    resumed = Life(life.save(), {"owner": next_life}).begin()
    assert resumed.lost
    assert next_life.items == [5]


def test_nothing_is_stored_before_the_first_batch_and_nothing_put_back_into_a_run_that_begins():
    life = Life(given={"meter": Meter()})
    assert life.observer.section(sys._getframe()) is None
    assert (life.begin().lost, life.differs, life.stored) == ([], [], set())


def test_a_resumed_run_stores_what_it_put_back():
    *_, resumed = lives(lambda: {"meter": Meter()}, lambda given: given["meter"].add())
    third = {"meter": Meter()}
    Life(resumed.save(), third).begin()
    assert third["meter"].total == 4


def test_callbacks_of_one_class_are_told_apart_by_their_order():
    callbacks = [Meter(), Meter(), Net()]
    life = Life(callbacks=callbacks)
    for _ in range(2):
        life.step(lambda: [callbacks[1].add(), callbacks[0].add(), callbacks[0].add()])
    next_life = [Meter(), Meter(), Net()]
    Life(life.save(), callbacks=next_life).begin()
    assert [meter.total for meter in next_life[:2]] == [4, 2]


@pytest.mark.parametrize("in_graph", [False, True])
def test_attributes_of_cells_are_stored_and_under_graph_named_too(in_graph):
    net = Net()
    life = Life(cells=[("", net)], in_graph=in_graph)
    for _ in range(2):
        life.step(lambda: setattr(net, "calls", net.calls + 1))
    next_life = Net()
    Life(life.save(), cells=[("", next_life)]).begin()
    assert next_life.calls == 2
    assert [*life.unstored] == (["Net().calls"] if in_graph else [])


@pytest.mark.parametrize("index", range(len(objects())))
def test_no_look_save_or_restore_runs_code_of_the_users(index):
    def make():
        held = objects()[index]
        return {"meter": Meter(held=held, items=[held], table={"a": held}, pair=(held, 1))}

    given, next_life = make(), make()
    with armed():
        life = Life(None, given)
        for _ in range(2):
            life.step(lambda: [given["meter"].add(), given["meter"].items.append(1), given["meter"].table.update(b=1)])
        resumed = Life(life.save(), next_life).begin()
    assert next_life["meter"].total == 2
    assert len(next_life["meter"].items) == 3 or resumed.lost or life.unstored


def test_a_look_keeps_nothing_alive():
    class Weight:
        pass

    meter = Meter(held=Weight())
    watch = weakref.ref(meter.held)
    life = Life(given={"meter": meter})
    life.step(meter.add)
    del meter.held
    life.step(meter.add)
    assert watch() is None


globals()["__name__"] = "ckptkit.tests"  # the frames of tests are none of the user's
