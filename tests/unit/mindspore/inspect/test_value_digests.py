"""Digests of plain values: what Python or a class of the user's does with them must not matter."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections import deque
from unittest import mock

import mindspore as ms
import pytest

from ckptkit.mindspore.inspect.contents import below
from ckptkit.mindspore.inspect.loops import containers
from ckptkit.mindspore.inspect.reachability import Reachability, plain_form
from ckptkit.mindspore.inspect.values import digest
from ckptkit.mindspore.inspect.values.changed import ChangedValues
from ckptkit.mindspore.inspect.values.digest import digest_of_value, in_words, is_plain
from ckptkit.mindspore.inspect.values.roots import Root
from ckptkit.mindspore.inspect.values.start import start_values_of

LONG = 1 << 20_000


class Thing:
    """Something that weak proxies can stand for."""


@pytest.mark.parametrize(
    "value",
    [LONG, [LONG], {LONG, 3}, {(LONG, 3)}, {LONG: 1}],
    ids=lambda one: type(one).__name__,
)
def test_number_with_more_digits_than_python_prints_is_digested(value):
    """Such as the bits of the samples that were seen; Python refuses to print more than 4300 digits."""
    kind = type(value)
    other = kind([*value][1:]) if isinstance(value, (list, set)) else kind()
    assert is_plain(value)
    assert digest_of_value(value) == digest_of_value(copy.deepcopy(value)) != digest_of_value(other)
    assert in_words(value)
    reach = Reachability([], set())
    reach.walk("seen", value)
    assert reach.found


def test_number_of_ones_own_class_with_many_digits_is_seen():
    class Bits(int):
        pass

    assert plain_form(Bits(LONG)) != plain_form(Bits(3 << 20_000))
    assert plain_form(itertools.count(LONG)) is not None


class Shuffled(list):
    """Says how often it was iterated."""

    def __init__(self, items):
        super().__init__(items)
        self.times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()

    def __len__(self):
        self.times += 1
        return super().__len__()


class Unprintable:
    def __repr__(self):
        raise AssertionError("nothing of the user's may run")


def test_containers_of_ones_own_are_read_without_their_code():
    """One may shuffle, or count an epoch, whenever it is iterated."""
    one = Shuffled([1, 2])
    assert is_plain(one)
    assert digest_of_value(one) != digest_of_value(Shuffled([1, 3]))
    assert in_words(one) == "Shuffled of 2"
    assert one.times == 0
    assert not is_plain({Unprintable(), (Unprintable(), 1)})
    assert not is_plain(mock.Mock(spec=dict))


def test_what_a_training_changes_is_looked_for_beside_a_long_number():
    """It is not looked for at all if one value raises an error."""
    held = {"bits": LONG, "some": {LONG}, "count": itertools.count(LONG)}
    changed = ChangedValues()
    roots = [Root("held", held, None, "held")]
    assert changed.look(roots, []) == ()
    held["bits"] |= 1
    assert changed.look(roots, []) == ("held",)


def test_weak_proxy_of_what_is_gone_is_no_error():
    thing = Thing()
    proxies = [weakref.proxy(thing)]
    del thing
    reach = Reachability([], set())
    reach.walk("gone", proxies[0])
    reach.walk("held", proxies)
    assert reach.found == {}


def test_names_of_a_function_are_read_in_an_order_that_no_hash_decides():
    """A class is found by its first name only: by another one in a resumed process, it would seem to differ."""

    def uses():
        return Thing, Shuffled, LONG, deque, is_plain, in_words, digest_of_value, plain_form, Reachability, Root

    names = [name for name, _ in below(uses)]
    assert len(names) == 10
    assert names == sorted(names)


@pytest.mark.parametrize("made", [dict.fromkeys, deque, set], ids=["dict", "deque", "set"])
def test_container_that_another_thread_changes_is_read(made):
    """As the buffer of one's own loader that reads ahead: Python refuses to go on iterating."""
    changing = made(range(50))

    def grows(one):
        changing.update({len(changing): 0}) if isinstance(changing, dict) else None
        changing.add(len(changing)) if isinstance(changing, set) else None
        changing.append(0) if isinstance(changing, deque) else None
        return one

    with mock.patch.object(digest, "generator_state", lambda one: [grows(one)].clear()):
        assert digest_of_value(changing)
    with mock.patch.object(containers, "met", grows):
        assert isinstance(changing, set) or len(containers.items_of(changing, 8)) == 8
    if not isinstance(changing, set):
        for _ in below(changing):
            grows(changing)


def test_attributes_that_a_framework_replaces_in_tensors_are_not_used(monkeypatch):
    """Mindtorch makes a tensor of MindSpore look like one of PyTorch, and its ``nbytes`` fails for some dtypes."""
    monkeypatch.setattr(ms.Tensor, "nbytes", property(lambda _: pytest.fail("it is another's")))
    tensor = ms.Tensor([1, 2], ms.uint8)
    assert is_plain(tensor)
    assert set(start_values_of([], [("tensor", tensor)])) == {"tensor"}
    held, changed = [tensor], ChangedValues()
    roots = [Root("held", held, None, "held")]
    assert changed.look(roots, []) == ()
    held[0] = ms.Tensor([1, 3], ms.uint8)
    assert changed.look(roots, []) == ("held",)
