"""What is packed comes back equal, of the same types, in place where others may hold it; or it is refused."""

from __future__ import annotations

import array
import ctypes
import datetime
import enum
import io
import itertools
import json
import operator
import pathlib
import random
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from unit.mindspore.observe.lives import through_checkpoint

from ckptkit.mindspore.observe.packing import CannotPackError, Packer, Unpacker, refilled, signature_of

MOST_BYTES = 1 << 16


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


Point = namedtuple("Point", "x y")


@dataclass
class Record:
    step: int
    losses: list = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: str
    rate: float


@dataclass(slots=True)
class Slotted:
    count: int
    items: list


class HalfSlotted:
    __slots__ = ("__dict__", "total", "unset")


Bag, Stack, Tags, Window, Pair, Ident, Rate, Word, Keys = (
    type(name, (base,), {"__module__": __name__})
    for name, base in zip(
        ("Bag", "Stack", "Tags", "Window", "Pair", "Ident", "Rate", "Word", "Keys"),
        (dict, list, set, deque, tuple, int, float, str, frozenset),
        strict=True,
    )
)


class Made:
    def __new__(cls):
        return super().__new__(cls)


def with_attributes(value, **attributes):
    for name, part in attributes.items():
        setattr(value, name, part)
    return value


def advanced(iterator, steps):
    for _ in range(steps):
        next(iterator)
    return iterator


def class_of(module, name):
    return operator.attrgetter(name)(sys.modules[module])


def packer():
    return Packer(lambda held: None, MOST_BYTES)


def again(value, present=None, *, references=None):
    """What another process makes of a value; with ``present``, an object that it has, which gets the content."""
    references = {"list": list, "float": float, **(references or {})}
    names = {id(held): name for name, held in references.items()}
    packing = Packer(lambda held: names.get(id(held)), MOST_BYTES)
    packed = packing.slot(value, is_content=present is not None)
    made = Unpacker(references.get, class_of).slot(*through_checkpoint(packed))
    return made if present is None else refilled(present, made)


def described(value):  # noqa: PLR0911 - one case per kind reads like a table
    """A value as nested tuples that are equal for equal bits and types only."""
    kind = type(value)
    if isinstance(value, ms.Tensor):
        bits = value.view(ms.int16) if value.dtype == ms.bfloat16 else value
        named = [getattr(value, name, None) for name in ("name", "requires_grad")]
        return kind, str(value.dtype), value.shape, bits.asnumpy().tobytes(), named
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (np.random.Generator, np.random.BitGenerator)):
        bits = getattr(value, "bit_generator", value)
        return kind, type(bits), repr(bits.state)
    if isinstance(value, np.random.RandomState):
        return kind, repr(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return kind, value.getstate()
    if kind in (float, complex):
        return kind, repr(value)
    if kind in (itertools.count, itertools.cycle):
        return kind, repr(value) if kind is itertools.count else [next(value) for _ in range(7)]
    own = {} if isinstance(value, enum.Enum) else getattr(value, "__dict__", {})
    slots = [getattr(value, name, None) for name in getattr(kind, "__slots__", ()) if name != "__dict__"]
    own = [*map(described, (*own.items(), *slots))]
    if isinstance(value, dict):
        items = [(described(key), described(part)) for key, part in value.items()]
        return kind, getattr(value, "default_factory", None), items, own
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(described, value))), own
    if isinstance(value, (list, tuple, deque)):
        return kind, getattr(value, "maxlen", None), [*map(described, value)], own
    if own:
        return kind, own
    return kind, value


TENSORS = ["bool_", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]
VALUES = [
    *(ms.Tensor([[1, 0, 1]], getattr(ms, dtype)) for dtype in TENSORS),
    *(None, True, 0, -7, 2**80, 0.1, float("nan"), -0.0, float("-inf"), 1 - 0.0j, "text", "", b"\0\xff"),
    *(np.float32(0.1), np.int8(-3), np.bool_(True), np.float64("nan"), np.uint64(2**64 - 1)),
    *([], [1, [2.5, [None]]], (1, ("a",)), {"b": 1, "a": {2: b"x", (1, "y"): None}}, {1, 2.5, "x"}, frozenset({b"x"})),
    *(OrderedDict([("z", 1), ("a", 2)]), Counter("abca"), defaultdict(list, {"a": [1]}), defaultdict(float, {3: 0.5})),
    *(defaultdict(None, {1: 2}), deque([1, 2]), deque([1, [2]], maxlen=3), {(Phase.MAIN, 1): "enum in a key"}),
    *(Point(1, [2]), Phase.MAIN, Record(3, [0.5]), Frozen("a", 0.25), Slotted(2, [1])),
    with_attributes(HalfSlotted(), total=3, beside=[4]),
    with_attributes(Bag(a=[1]), note="n"),
    Stack([1, [2]]),
    [Record(1), {"deep": (Point(0, deque([Slotted(0, []), OrderedDict({(1, True): Stack([Bag(a=(None,))])})])),)}],
    *(range(3, 9, 2), slice(1, None, 2), Decimal("0.10"), Fraction(1, 3), pathlib.Path("a/b")),
    *(datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.date(2020, 1, 2), datetime.timedelta(1, 2)),
    *(bytearray(b"ab"), itertools.count(5), itertools.count(5, 3), itertools.count(0.5)),
    ms.Parameter(ms.Tensor([1.0, 2.0]), name="center", requires_grad=False),
    *(itertools.cycle([1, 2, 3]), np.dtype("f4"), types.SimpleNamespace(a=[1]), datetime.timezone.utc),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_equal_and_of_the_same_types(value):
    before = value if not isinstance(value, (itertools.count, itertools.cycle)) else again(value)
    assert described(again(value)) == described(before)


DTYPES = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8"]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_all_dtypes_come_back_bit_by_bit(dtype, shape):
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    value = np.frombuffer(np.random.default_rng(1).bytes(count), np.uint8)
    value = (value & 1).view(dtype) if dtype == "?" else value.view(dtype)
    value = value.reshape(shape)
    assert described(again(value)) == described(value)
    assert described(again(value.T)) == described(np.array(value.T))


def spawned(seed, children=3):
    sequence = np.random.SeedSequence(seed)
    sequence.spawn(children)
    return np.random.Generator(np.random.PCG64(sequence))


GENERATOR_MAKERS = [
    *(np.random.default_rng, np.random.RandomState, random.Random, np.random.PCG64, np.random.MT19937),
    *(np.random.Philox, lambda seed: np.random.Generator(np.random.SFC64(seed)), spawned),
]


def draws(generator):
    if isinstance(generator, np.random.BitGenerator):
        return generator.random_raw(3).tolist()
    return [generator.gauss(0, 1) if isinstance(generator, random.Random) else generator.normal() for _ in range(3)]


@pytest.mark.parametrize("make", GENERATOR_MAKERS)
def test_generators_go_on_where_they_were_in_place(make):
    value, present = make(3), make(5)
    draws(value)
    made = again(value)
    assert again(value, present) is present
    expected = draws(value)
    assert draws(made) == draws(present) == expected


IN_PLACE = [
    *([1], [3, [4]], {"a": 1}, {"b": [2]}, {1}, {2, 3}, deque([1], maxlen=4), deque([2, 3], maxlen=4)),
    *(OrderedDict(a=1), OrderedDict(b=2, a=3), Counter("a"), Counter("bb")),
    *(defaultdict(list, {"a": 1}), defaultdict(list, {"b": 2}), np.zeros(3), np.array([1.0, 2.0, 3.0])),
    *(Bag(a=1), Bag(b=2), Stack([1]), Stack([2, 3]), Tags({1}), Tags({2}), Window([1]), Window([2, 3])),
    *(bytearray(b"a"), bytearray(b"bc")),
]


@pytest.mark.parametrize(
    ("present", "saved"), [*zip(IN_PLACE[::2], IN_PLACE[1::2], strict=True)], ids=lambda value: type(value).__name__
)
def test_what_is_there_already_changes_in_place(present, saved):
    assert again(saved, present) is present
    assert described(present) == described(saved)


def test_a_new_value_shares_no_memory_with_the_saved_one():
    saved = {"array": np.zeros(3), "list": [1]}
    first, packed = packer().slot(saved)
    saved["array"][:] = 9
    saved["list"].append(2)
    value = Unpacker(lambda reference: None, class_of).slot(first, packed)
    assert (value["array"].tolist(), value["list"]) == ([0, 0, 0], [1])


ITERATED = [[1, 2, 3], (1, 2, 3), range(3), "abc", b"abc", {1: 2, 3: 4, 5: 6}, deque([1, 2, 3])]


@pytest.mark.parametrize("steps", [0, 2, 3])
@pytest.mark.parametrize("begin", [iter, reversed, enumerate, lambda items: zip(items, items, strict=False)])
@pytest.mark.parametrize("items", ITERATED, ids=repr)
def test_iterators_go_on_where_they_were(items, begin, steps):
    saved = advanced(begin(items), steps)
    restored, again_restored = again(saved), again(saved)
    assert [*restored] == [*again_restored] == [*saved]


def test_references_lead_to_the_objects_of_the_new_process():
    elsewhere = Stack()
    references = {"stack": elsewhere, "function": advanced, "class": Record}
    value = again([elsewhere, advanced, Record], references=references)
    assert [part is held for part, held in zip(value, (elsewhere, advanced, Record), strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((np.zeros(2), np.zeros(3)), (np.zeros(2), np.zeros(2, int)), (deque(maxlen=1), deque()), ([], Stack())),
        *((ms.Parameter([1.0], name="a"), ms.Parameter([1.0, 2.0], name="a")), (Record(1), Bag())),
    ],
)
def test_objects_of_unlike_kinds_do_not_replace_each_other(first, second):
    assert signature_of(first) != signature_of(second)
    assert signature_of(first) is not None


@pytest.mark.parametrize("value", [3, "a", (1,), frozenset(), Ident(1), ms.Tensor([1]), np.float32(1), sys])
def test_what_never_changes_has_no_place_of_its_own(value):
    assert signature_of(value) is None


def local_object():
    class Local:
        pass

    return Local()


def recursive():
    value = [1]
    value.append(value)
    return value


REFUSED = [
    *((lambda: nn.Dense(2, 2), "Dense"), (threading.Lock, "lock"), (threading.Thread, "Thread")),
    *((io.StringIO, "StringIO"), (lambda: json, "module"), (lambda: lambda: 0, "function"), (local_object, "Local")),
    *((lambda: (n for n in ()), "generator"), (lambda: np.array([{}], object), "object"), (recursive, "in itself")),
    *((lambda: np.zeros(MOST_BYTES + 1, np.uint8), "too large"), (lambda: "x" * (MOST_BYTES + 1), "too large")),
    *((lambda: ms.Tensor(np.zeros(MOST_BYTES, np.float32)), "too large"), (lambda: "\ud800", "Unicode")),
    *((lambda: np.array(["text"]), "array of"), (lambda: ValueError("x"), "ValueError"), (lambda: Record, "type")),
    *((lambda: np.zeros(2, [("a", "i4")]), "array of"), (lambda: iter(map(len, [])), "builtin")),
    *((lambda: ctypes.c_int(1), "c_int"), (lambda: (ctypes.c_double * 2)(1), "c_double"), (lambda: Ident(7), "Ident")),
    *((lambda: Pair((1, 2)), "Pair"), (lambda: Keys({1}), "Keys"), (lambda: np.datetime64("2020-01-01"), "datetime64")),
    *((lambda: Rate(0.5), "Rate"), (lambda: Word("w"), "Word"), (lambda: zip(x for x in ()), "generator")),
    *((lambda: np.zeros(2, ">f8"), ">f8"), (lambda: np.complex128(1), "complex128"), (lambda: Tags({1}), "Tags")),
    *((lambda: Window([1]), "Window"), (lambda: array.array("d"), "array.array"), (lambda: [].append, "method")),
]


@pytest.mark.parametrize("nest", [lambda value: value, lambda value: Record(0, [value])])
@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_what_no_other_process_can_have_is_refused(make, why, nest):
    with pytest.raises(CannotPackError, match=why):
        through_checkpoint(packer().slot(nest(make())))


def test_bytes_count_over_all_slots_of_a_packer():
    small = Packer(lambda held: None, 100)
    small.slot(np.zeros(10))
    with pytest.raises(CannotPackError, match="too large"):
        small.slot(b"x" * 21)
    small.slot(0)  # what is refused takes no bytes from the next


def test_what_needs_code_of_the_users_to_be_made_is_refused():
    for value, why in ((Made(), "Made makes its objects in a __new__"), (defaultdict(lambda: 7, {"a": 1}), "function")):
        with pytest.raises(CannotPackError, match=why):
            again(value)


def test_a_dict_that_is_there_keeps_a_factory_without_a_name():
    assert again(defaultdict(lambda: 7, {"a": 1}), present := defaultdict(lambda: 8)) is present
    assert (present["a"], present["b"]) == (1, 8)


@dataclass(frozen=True)
class Unprintable:
    number: int

    def __repr__(self):
        raise AssertionError("runs the class")


def test_members_of_a_set_are_packed_without_their_repr():
    assert [member.number for member in again({Unprintable(3)})] == [3]


def test_what_a_refused_value_holds_is_packed_with_the_next():
    packing, shared = packer(), [1]
    with pytest.raises(CannotPackError):
        packing.slot([shared, [].append])
    packed = through_checkpoint(packing.slot({"held": shared}))
    assert Unpacker({}.get, class_of).slot(*packed) == {"held": [1]}
    with pytest.raises(CannotPackError, match="a part of it could not be put back"):  # that slot is lost here
        Unpacker({}.get, class_of).slot(*through_checkpoint(packing.slot([shared])))
