"""State that a loop reaches by a name in a string, a special method or an object of a library is named."""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import weakref
from collections import Counter, OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
from test_loops import Training


class Counted:
    """Counts, and is asked in every way that Python has."""

    def __init__(self):
        self.count = 0
        self._level = 0

    def add(self):
        self.count += 1

    def __bool__(self):
        return self.count > 3

    def __contains__(self, item):
        return self.count > item

    def __iter__(self):
        for _ in range(self.count):
            yield 0.5

    def __neg__(self):
        return -self.count

    def __enter__(self):
        self.count += 1
        return self.count

    def __exit__(self, *raised):
        return None

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level += value


class Inherited(Counted):
    def add(self):
        if self.level == 0:
            super().add()


class Alternating:
    """Is its own iterator."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return 0.5 * self.at


class GivesAnother:
    """Its iterator is one of the same kind, whose iterator is this one again."""

    def __init__(self):
        self.other, self.count = None, 0

    def __iter__(self):
        self.count += 1
        return self.other

    def __next__(self):
        raise StopIteration


def set_by_a_string(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    restore()
    for x, y in batches:
        setattr(kept, "count", kept.count + 1)  # noqa: B010 - what is to be read
        cell(x * kept.count, y)


def got_by_a_string(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    restore()
    for x, y in batches:
        kept.count += 1
        cell(x * getattr(kept, "count", 1), y)


def set_by_object(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    restore()
    for x, y in batches:
        object.__setattr__(kept, "count", kept.count + 1)
        cell(x * kept.count, y)


def by_vars(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    restore()
    for x, y in batches:
        vars(kept)["count"] += 1
        cell(x * kept.count, y)


def by_dict(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    restore()
    for x, y in batches:
        kept.count += 1
        cell(x * kept.__dict__["count"], y)


def updated_by_dict(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    restore()
    for x, y in batches:
        kept.__dict__.update(count=kept.count + 1)
        cell(x * kept.count, y)


SEEN = 0


def by_globals(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        globals()["SEEN"] += 1
        cell(x * SEEN, y)


def truth_of_an_object(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        if counted:
            cell(x, y)


def truth_that_ends_it(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        cell(x, y)
        if x is not None and not counted:
            break


def truth_of_an_expression(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        cell(x * (0.5 if counted else 1.0), y)


def asked_for_an_item(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        cell(x if 3 in counted else -x, y)


def iterated(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        for scale in counted:
            cell(x * scale, y)


def its_own_iterator(cell, batches, rate, restore):
    others = Alternating()
    restore()
    for x, y in batches:
        for scale in others:
            cell(x * scale, y)
            if scale > 1:
                break


def iterators_that_give_each_other(cell, batches, rate, restore):
    one, other = GivesAnother(), GivesAnother()
    one.other, other.other = other, one
    restore()
    for x, y in batches:
        for _ in one:
            pass
        cell(x * one.count, y)


def negated(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        cell(x * -counted, y)


def entered(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        with counted as count:
            cell(x * count, y)


def set_by_a_property(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.level = 1
        cell(x * counted.level, y)


def method_in_a_variable(cell, batches, rate, restore):
    losses = []
    add = losses.append
    restore()
    for x, y in batches:
        add(float(cell(x, y)))
        if len(losses) > 5:
            rate.set_data(rate * 0.5)


def method_of_an_object_in_a_variable(cell, batches, rate, restore):
    counted = Counted()
    add = counted.add
    restore()
    for x, y in batches:
        add()
        cell(x * counted.count, y)


def method_of_a_parent(cell, batches, rate, restore):
    counted = Inherited()
    restore()
    for x, y in batches:
        counted.add()
        cell(x * counted.count, y)


class Delegating:
    def __init__(self):
        self.inner = SimpleNamespace(count=0)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def delegated(cell, batches, rate, restore):
    outer = Delegating()
    restore()
    for x, y in batches:
        outer.inner.count = outer.count + 1
        cell(x * outer.inner.count, y)


class Forwarding:
    def __init__(self, inner):
        self.__dict__["inner"] = inner

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)


def forwarded(cell, batches, rate, restore):
    kept = SimpleNamespace(count=0)
    outer = Forwarding(kept)
    restore()
    for x, y in batches:
        outer.count = kept.count + 1
        cell(x * kept.count, y)


def method_of_a_class(cell, batches, rate, restore):
    losses = []
    restore()
    for x, y in batches:
        list.append(losses, float(cell(x, y)))
        if len(losses) > 5:
            rate.set_data(rate * 0.5)


def set_that_shrinks(cell, batches, rate, restore):
    left = set(range(100))
    restore()
    for x, y in batches:
        left.difference_update({len(left)})
        cell(x * len(left), y)


def order_that_changes(cell, batches, rate, restore):
    turns = OrderedDict({1.0: "a", 2.0: "b"})
    restore()
    for x, y in batches:
        turn = next(iter(turns))
        turns.move_to_end(turn)
        cell(x * turn, y)


def counter_that_falls(cell, batches, rate, restore):
    left = Counter(batches=100)
    restore()
    for x, y in batches:
        left.subtract(["batches"])
        cell(x * left["batches"], y)


def output_by_position(cell, batches, rate, restore):
    steps = np.zeros(3)
    restore()
    for x, y in batches:
        np.add(steps, 1, steps)
        cell(x * float(steps[0]), y)


def queue_that_empties(cell, batches, rate, restore):
    waiting = queue.Queue()
    restore()
    for x, y in batches:
        cell(x * waiting.get_nowait(), y)


def queued(cell, batches, rate, restore):
    waiting = queue.Queue()
    waiting.put(1.0)
    restore()
    for x, y in batches:
        loss = cell(x * waiting.get(), y)
        waiting.put(float(loss))


def simple_queue(cell, batches, rate, restore):
    waiting = queue.SimpleQueue()
    waiting.put(1.0)
    restore()
    for x, y in batches:
        scale = waiting.get_nowait()
        waiting.put(scale * 0.5)
        cell(x * scale, y)


def number_of_c(cell, batches, rate, restore):
    count = ctypes.c_int(0)
    restore()
    for x, y in batches:
        count.value += 1
        cell(x * count.value, y)


def number_in_shared_memory(cell, batches, rate, restore):
    count = multiprocessing.Value("i", 0)
    restore()
    for x, y in batches:
        count.value += 1
        cell(x * count.value, y)


def function_that_changes(cell, batches, rate, restore):
    def plain(x):
        return x

    def doubled(x):
        return 2 * x

    change = plain
    restore()
    for x, y in batches:
        loss = cell(change(x), y)
        if float(loss) < 0.5:
            change = doubled


def cell_that_changes(cell, batches, rate, restore):
    chosen, other = cell, cell.network
    restore()
    for x, y in batches:
        loss = chosen(x, y)
        if float(loss) < 0.5:
            chosen = other


NAMED = [
    (set_by_a_string, "kept (SimpleNamespace)"),
    (got_by_a_string, "kept (SimpleNamespace)"),
    (set_by_object, "kept (SimpleNamespace)"),
    (by_vars, "kept (SimpleNamespace)"),
    (by_dict, "kept (SimpleNamespace)"),
    (updated_by_dict, "kept (SimpleNamespace)"),
    (by_globals, "SEEN"),
    (truth_of_an_object, "counted (Counted)"),
    (truth_that_ends_it, "counted (Counted)"),
    (truth_of_an_expression, "counted (Counted)"),
    (asked_for_an_item, "counted (Counted)"),
    (iterated, "counted (Counted)"),
    (its_own_iterator, "others (Alternating)"),
    (iterators_that_give_each_other, "one (GivesAnother)"),
    (negated, "counted (Counted)"),
    (entered, "counted (Counted)"),
    (set_by_a_property, "counted (Counted)"),
    (method_in_a_variable, "losses"),
    (method_of_an_object_in_a_variable, "add (Counted)"),
    (method_of_a_parent, "counted (Inherited)"),
    (forwarded, "kept (SimpleNamespace)"),
    (delegated, "outer.inner (SimpleNamespace)"),
    (method_of_a_class, "losses"),
    (set_that_shrinks, "left"),
    (order_that_changes, "turns"),
    (counter_that_falls, "left"),
    (output_by_position, "steps"),
    (queue_that_empties, "waiting"),
    (queued, "waiting"),
    (simple_queue, "waiting"),
    (number_of_c, "count"),
    (number_in_shared_memory, "count"),
    (function_that_changes, "change"),
    (cell_that_changes, "chosen"),
]


@pytest.mark.parametrize(("loop", "where"), NAMED, ids=lambda one: getattr(one, "__name__", ""))
def test_state_is_named_however_it_is_reached(loop, where):
    found = Training().found(loop)
    assert [one.where for one in found] == [f"{loop.__name__}(): {where}"]


def asked_and_shown(cell, batches, rate, restore):
    counted = Counted()
    restore()
    for x, y in batches:
        counted.add()
        if counted:
            print(-counted, 3 in counted, [*counted])
        cell(x, y)


def options_by_strings(cell, batches, rate, restore):
    options = SimpleNamespace(scale=2.0, seen=0)
    restore()
    for x, y in batches:
        setattr(options, "seen", options.seen + 1)  # noqa: B010 - what is to be read
        cell(x * getattr(options, "scale", 1.0) * vars(options)["scale"], y)
        print(options.seen)


def function_chosen_for_each_batch(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        change = abs if float(x) < 0 else float
        cell(change(x), y)


def output_that_is_filled_anew(cell, batches, rate, restore):
    doubled = np.zeros(3)
    restore()
    for x, y in batches:
        np.add(x.asnumpy(), x.asnumpy(), doubled)
        cell(x * float(doubled[0]), y)


def cell_made_ready(cell, batches, rate, restore):
    restore()
    for x, y in batches:
        cell = cell.set_train()
        cell(x, y)


def losses_that_a_method_in_a_variable_keeps(cell, batches, rate, restore):
    losses = []
    add = losses.append
    restore()
    for x, y in batches:
        add(float(cell(x, y)))
    print(sum(losses))


GONE = weakref.proxy(Counted())


def dead_objects(cell, batches, rate, restore):
    counted = Counted()
    gone = weakref.proxy(counted)
    kept = SimpleNamespace(gone=gone, all=[gone], by_name={"gone": gone})
    cell.network.gone, cell.network.lists = gone, [gone]
    del counted
    restore()
    for x, y in batches:
        kept.seen = gone
        if x is gone or x is kept.gone or x is kept.all[0] or x is kept.by_name["gone"] or x is GONE:
            print(kept.by_name.values())
            break
        cell(x, y)


@pytest.mark.parametrize(
    "loop",
    [
        asked_and_shown,
        options_by_strings,
        function_chosen_for_each_batch,
        output_that_is_filled_anew,
        cell_made_ready,
        losses_that_a_method_in_a_variable_keeps,
        dead_objects,
    ],
    ids=lambda one: one.__name__,
)
def test_what_training_does_not_depend_on_is_not_named(loop):
    assert Training().found(loop) == []
