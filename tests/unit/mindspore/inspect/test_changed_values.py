"""What training changes in code that nobody read is named after the next micro-steps, whatever holds it."""

from __future__ import annotations

import collections
import configparser
import contextvars
import enum
import functools
import importlib
import io
import itertools
import logging
import os
import queue
import sqlite3
import sys
import threading
import types

import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.train import Callback

from ckptkit.mindspore.inspect import ChangedValues, Root, roots_of_loops
from ckptkit.mindspore.inspect.loops.objects import ITEMS, Stored
from ckptkit.mindspore.inspect.loops.scope import Place

HOT = threading.Event()
scale = 1.0


class Meter:
    seen = itertools.count()

    def __init__(self):
        self.n = 0
        self.fixed = 3

    def __call__(self):
        self.n += 1


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Kept(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Once(type):
    count = collections.Counter()  # noqa: RUF012 - shared on purpose


class Mode(enum.Enum):
    WARM = 1
    HOT = 2


class Every(logging.Filter):
    def __init__(self, n=0):
        self.n = n


def filtered():
    one = logging.Logger("one")
    one.addFilter(Every())
    return one


def made():
    module = types.ModuleType("a_plugin")
    module.n = 0
    return module


def drawing():
    at = 0
    while True:
        at += 1
        yield at


def lengthen(held):
    held.set("DEFAULT", "a", held["DEFAULT"]["a"] + "1")


class Watch:
    """Looks where it is called, as the end of a micro-step does."""

    def __init__(self, known=(), written=()):
        self._changes = ChangedValues()
        self._changes.written.update(written)
        self._known = known
        self._told = []

    def step(self):
        roots = [one for one in roots_of_loops() if one.path.startswith("loop()") and one.value is not self]
        self._told += self._changes.look(roots, self._known)

    @property
    def told(self):
        return [one.removeprefix("loop(): ") for one in self._told]


def set_flag(watch):
    def loop(flag):
        for at in range(3):
            if at == 1:
                flag.set()
            watch.step()

    loop(threading.Event())
    return ["flag._flag"]


def hold(make, change, *named):
    """A loop that changes an object which lies in one of its variables."""

    def run(watch):
        def loop(held, change):
            for at in range(3):
                if at:
                    change(held)
                watch.step()

        loop(make(), change)
        return [*named]

    run.__name__ = named[0] if named else "nothing"
    return run


HOLDERS = {
    "event": set_flag,
    "attribute": hold(Meter, lambda held: held(), "held.n"),
    "slot": hold(Slotted, lambda held: setattr(held, "n", held.n + 1), "held.n"),
    "list": hold(list, lambda held: held.append(1), "held"),
    "long list": hold(lambda: [0] * 1000, lambda held: held.append(1), "held"),
    "end of a long list": hold(lambda: [0] * 1000, lambda held: held.__setitem__(-1, held[-1] + 1), "held"),
    "deque": hold(lambda: collections.deque(maxlen=2), lambda held: held.append(len(held) or held), "held"),
    "set": hold(set, lambda held: held.add(len(held)), "held"),
    "dict": hold(dict, lambda held: held.update({len(held): 1}), "held"),
    "dict item": hold(lambda: {"a": 1}, lambda held: held.update(a=held["a"] + 1), "held"),
    "counter": hold(collections.Counter, lambda held: held.update("a"), "held"),
    "nested": hold(lambda: {"a": [Meter()]}, lambda held: held["a"][0](), "held['a'][0].n"),
    "array": hold(lambda: np.zeros(4), lambda held: held.__iadd__(1), "held"),
    "large array": hold(lambda: np.zeros(1 << 20), lambda held: held.__iadd__(1), "held"),
    "bytes": hold(lambda: bytearray(3), lambda held: held.__setitem__(0, held[0] + 1), "held"),
    "generator": hold(drawing, next, "held", "held.at"),
    "random": hold(lambda: np.random.default_rng(1), lambda held: held.normal(), "held"),
    "method of a random generator": hold(lambda: np.random.default_rng(1).normal, lambda held: held(), "held"),
    "count": hold(itertools.count, next, "held"),
    "cycle": hold(lambda: itertools.cycle("abcde"), next, "held"),
    "iterator": hold(lambda: iter(range(9)), next, "held"),
    "enumerate": hold(lambda: enumerate("abcdefg"), next, "held"),
    "partial": hold(lambda: functools.partial(Meter.__call__, Meter()), lambda held: held(), "held(1).n"),
    "method": hold(lambda: Meter().__call__, lambda held: held(), "held.n"),
    "default": hold(lambda: lambda at=[]: at.append(1), lambda held: held(), "held(0)"),
    "function": hold(lambda: lambda: None, lambda held: vars(held).update(n=len(vars(held))), "held.n"),
    "of a class": hold(Meter, lambda held: next(held.seen), "held.Meter.seen"),
    "of a metaclass": hold(lambda: Once("A", (), {}), lambda held: Once.count.update("a"), "change: Once.count"),
    "semaphore": hold(lambda: threading.Semaphore(9), lambda held: held.acquire(), "held._value"),
    "queue": hold(queue.Queue, lambda held: held.put(1), "held.queue", "held.unfinished_tasks"),
    "configuration": hold(lambda: configparser.ConfigParser({"a": "1"}), lengthen, "held._defaults"),
    "context": hold(lambda: contextvars.ContextVar("v", default=0), lambda held: held.set(held.get() + 1), "held"),
    "namespace": hold(lambda: types.SimpleNamespace(n=0), lambda held: setattr(held, "n", held.n + 1), "held.n"),
    "text in memory": hold(io.StringIO, lambda held: held.write("a"), "held"),
    "bytes in memory": hold(io.BytesIO, lambda held: held.write(b"a"), "held"),
    "filter of a logger": hold(
        filtered, lambda held: held.filters[0].__init__(held.filters[0].n + 1), "held.filters[0].n"
    ),
    "extra of a logger": hold(
        lambda: logging.LoggerAdapter(logging.Logger("one"), {"n": 0}),
        lambda held: held.extra.update(n=held.extra["n"] + 1),
        "held.extra",
    ),
    "operator of MindSpore": hold(lambda: ops.InsertGradientOf(Meter()), lambda held: held.f(), "held.f.n"),
    "rows in memory": hold(
        lambda: sqlite3.connect(":memory:").execute("create table t (a)").connection,
        lambda held: held.execute("insert into t values (1)"),
        "held",
    ),
    "module that was made": hold(lambda: [made()], lambda held: vars(held[0]).update(n=held[0].n + 1), "held[0].n"),
    "new attribute": hold(Meter, lambda held: setattr(held, "late", 1), "held.late"),
    "new attribute of a class": hold(type("A", (), {}), lambda held: setattr(type(held), "late", 1), "held.A.late"),
    "choice": hold(lambda: [Mode.WARM], lambda held: held.__setitem__(0, Mode.HOT), "held"),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_change_is_found_in_every_kind_of_object(kind):
    watch = Watch()
    expected = HOLDERS[kind](watch)
    assert watch.told == expected


def unseen():
    global scale  # noqa: PLW0603 - what scripts do
    scale *= 0.9
    HOT.set()


def uses_globals():
    return scale if HOT.is_set() else 0


def test_global_variable_of_a_called_function_is_found():
    HOT.clear()
    watch = Watch()

    def loop():
        for at in range(3):
            if at == 1:
                unseen()
            uses_globals()
            watch.step()

    loop()
    assert {one.partition(": ")[2] for one in watch.told} == {"scale", "HOT._flag"}


def bump(name):
    globals()[name] = globals().get(name, 0) + 1


def reads_the_environment():
    return os.environ.get("CKPTKIT_TEST_RATE")


def test_variable_with_a_computed_name_and_the_environment_are_found(monkeypatch):
    monkeypatch.setitem(globals(), "calls", 0)
    watch = Watch()

    def loop():
        for at in range(3):
            if at:
                monkeypatch.setenv("CKPTKIT_TEST_RATE", str(at))
                monkeypatch.setitem(globals(), "late" if at == 1 else "calls", at)
            bump("calls")
            reads_the_environment()
            watch.step()

    loop()
    found = {one.rpartition(": ")[2] for one in watch.told if one.startswith(("bump", "reads"))}
    assert found == {"calls", "late", "os.environ"}


def imports_by_statement():
    import a_late_module
    from a_late_module import table

    a_late_module.n += 1
    table["w"] += 1


def imports_by_name():
    return importlib.import_module("a_late_module").n


def module_itself():
    return sys.modules[__name__].calls


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (imports_by_statement, {"a_late_module.n", "a_late_module.table"}),
        (imports_by_name, {"a_late_module.n"}),
        (module_itself, {"calls"}),
    ],
)
def test_value_of_a_module_that_a_function_imports_is_found(call, told, monkeypatch):
    module = types.ModuleType("a_late_module")
    module.n, module.table = 0, {"w": 0}
    monkeypatch.setitem(globals(), "calls", 0)
    watch = Watch()

    def loop():
        for at in range(3):
            monkeypatch.setitem(sys.modules, module.__name__, module)  # as the first call does
            monkeypatch.setitem(globals(), "calls", at)
            monkeypatch.setattr(module, "n", at)
            call()
            watch.step()

    loop()
    assert told <= {one.rpartition(": ")[2] for one in watch.told if one.startswith("call: ")}


def test_new_attribute_is_told_of_an_object_that_was_there_only():
    watch = Watch()

    def loop(held):
        for at in range(3):
            if at:
                held["kept"] = types.SimpleNamespace(n=0, late=1)  # another object
            watch.step()

    loop({"kept": Meter()})
    assert watch.told == ["held"]


def test_what_the_loop_assigns_and_what_a_repeated_call_makes_is_left_out():
    watch = Watch()

    def epoch(meter):
        made = Meter()
        for at in range(3):
            batch = [at]
            meter()
            made()
            watch.step()
        return batch

    def loop(meter):
        for _ in range(2):
            epoch(meter)

    changes = ChangedValues()
    told = []
    watch.step = lambda: told.extend(
        changes.look([one for one in roots_of_loops() if "Watch" not in str(type(one.value))], ())
    )
    loop(Meter())
    assert "loop(): meter.n" in told
    assert not [one for one in told if one.startswith("epoch()") and "watch" not in one]


def looked(make, change, *, known=(), written=()):
    changes, one = ChangedValues(), make()
    changes.written.update(place(one) for place in written)
    told = []
    for _ in range(2):
        told += changes.look([Root("one", one, None, 0)], [it(one) for it in known])
        change(one)
    told += changes.look([Root("one", one, None, 0)], [it(one) for it in known])
    return told


def two():
    return [Meter(), types.SimpleNamespace(n=0)]


def both(held):
    held[0]()
    held[1].n += 1


@pytest.mark.parametrize(
    ("known", "written", "left"),
    [
        ((), (), ["one[0].n", "one[1].n"]),
        ((lambda held: held[0],), (), ["one[1].n"]),
        ((lambda held: Stored(held[1], frozenset("n")),), (), ["one[0].n"]),
        ((lambda held: Stored(held[1], frozenset("m")),), (), ["one[0].n", "one[1].n"]),
        ((), (lambda held: Place(id(held[0]), "n"),), ["one[1].n"]),
        ((), (lambda held: Place(id(Meter), "n"),), ["one[1].n"]),
        ((), (lambda held: Place(id(held[1]), ITEMS),), ["one[0].n"]),
        ((), (lambda held: Place(id(held), ITEMS),), []),
    ],
)
def test_what_checkpoints_hold_or_read_code_writes_is_left_out(known, written, left):
    assert looked(two, both, known=known, written=written) == left


def test_items_that_are_attributes_are_left_out_by_name():
    grow = lambda one: one.update(n=one["n"] + 1)  # noqa: E731 - a table of cases
    assert looked(lambda: Kept(n=0), grow) == ["one"]
    assert looked(lambda: Kept(n=0), grow, known=(lambda one: Stored(one, frozenset("n")),)) == []
    assert looked(lambda: Kept(n=0), grow, written=(lambda one: Place(id(one), "n"),)) == []


def test_later_value_is_compared_with_the_first_and_told_once():
    assert looked(Meter, Meter.__call__) == ["one.n"]
    assert looked(dict, lambda one: one.setdefault("late", [0]).append(1)) == ["one"]
    assert looked(types.SimpleNamespace, lambda one: vars(one).update(n=len(vars(one)))) == ["one.n"]


class Other:
    pass


def test_object_in_place_of_another_is_found():
    held = [Other(), Other()]
    assert looked(lambda: types.SimpleNamespace(one=held[0]), lambda one: setattr(one, "one", held[1])) == ["one.one"]
    assert looked(lambda: types.SimpleNamespace(one=Mode.WARM), lambda one: setattr(one, "one", Mode.HOT)) == [
        "one.one"
    ]


class Counting(Callback):
    def __init__(self):
        self.n = 0


class Counted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.n = 0
        self.dense = nn.Dense(2, 2)

    def construct(self, x):
        return self.dense(x)


@pytest.mark.parametrize("make", [Counting, Counted])
def test_attribute_of_a_callback_or_cell_is_found(make):
    assert looked(make, lambda one: setattr(one, "n", one.n + 1)) == ["one.n"]


def test_nothing_of_the_users_runs():
    class Traps:  # noqa: PLW1641 - it has, below
        def __getattribute__(self, name):
            raise AssertionError(name)

        def __eq__(self, other):
            raise AssertionError("==")

        __hash__ = __len__ = __repr__ = __iter__ = __eq__

    class Dict(dict):
        __iter__ = __len__ = items = keys = __getitem__ = Traps.__eq__

    assert looked(lambda: [Traps(), Dict(a=Traps())], lambda one: one.append(1)) == ["one"]


def test_large_objects_are_looked_into_in_part():
    many = [[at] for at in range(20_000)]
    assert looked(lambda: many, lambda one: one[0].append(1)) == ["one"]
    deep = functools.reduce(lambda inner, _: [inner], range(10_000), [])
    assert looked(lambda: deep, lambda one: one.append(1)) == ["one"]


def test_attribute_of_a_callback_with_methods_of_ones_own_is_found():
    assert looked(Callback, lambda one: vars(one).update(n=vars(one).get("n", 0) + 1)) == ["one.n"]


class Trains(nn.TrainOneStepCell):
    def __init__(self):
        network = Counted()
        super().__init__(network, nn.SGD(network.trainable_params()))
        self.n = 0


def test_attribute_that_a_class_of_a_library_assigns_is_left_out():
    def change(one):
        one.sens, one.n = one.sens + 1, one.n + 1

    assert looked(Trains, change) == ["one.n"]


def test_generator_of_a_library_is_left_out():
    """As the iterator of `ckptkit.data.resumable` is, whose position checkpoints have."""
    assert looked(lambda: os.walk("/"), next) == []
