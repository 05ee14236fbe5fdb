import collections
import enum
import math
import struct

import numpy as np
import pytest
from support.refusals import unrefused

from ckptkit.core.state_encoding import decode_tree, encode_tree
from ckptkit.format.documents import RankManifest, decode, encode
from ckptkit.format.shards import plan_shards


def through_a_document(value):
    leaves = []
    encoded = encode_tree(value, "user/x", leaves)
    plan_shards([leaf.spec for leaf in leaves])  # refuses names that stand twice
    document = RankManifest(
        checkpoint="x", rank=0, token="0" * 32, save_number=1, shards=[], state={"user": {"x": encoded}}
    )
    read = decode(encode(document), RankManifest, "rank-00000.json")
    return decode_tree(read.state["user"]["x"], {leaf.name: leaf.array for leaf in leaves})


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()
    elif isinstance(wanted, float):
        assert bits(found) == bits(wanted)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert_same(left, right)
    elif isinstance(wanted, dict):
        assert_same(list(found.items()), list(wanted.items()))
    else:
        assert found == wanted


LOST_BEFORE = [
    *(0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e16, 123456789012345680.0, math.inf, -math.inf),
    *(struct.unpack("<d", bytes.fromhex(digits))[0] for digits in ("010000000000f87f", "efbeaddeefbefaff")),
    *(True, 1, 1.0, 2**53 - 1, 2**53, -(2**53) - 1, 10**5000, -(10**5000)),
    *("", "\U0001f40d\x00\u2028", b"", bytes(range(256)), [], (), {}, ((),), {"": None}, {True: 1}, {math.inf: 1}),
    {1: "int", "1": "str", (1,): "tuple", None: "none", b"1": "bytes", 1.5: "float"},
    *({"b": 1, "a": {"z": 2, "y": 3}}, {("a", (2, 3.0)): [1]}),
    *({"$int": "12"}, {"$tuple": [1]}, {"$dict": {"$array": "x"}}),
    {"a/b": np.int8(1), "a": {"b": np.int8(2)}},
    {"a~1b": np.int8(1), "a/b": np.int8(2), "a~b": np.int8(3)},
    {np.int64(1): {"key": np.int64(2)}, "#0": np.int64(3), "#0.key": np.int64(4)},
    {np.float32(1.5): np.ones(2)},
    *(np.random.RandomState(3).get_state(), np.random.default_rng(3).bit_generator.state),
    *(np.float64(0.1), np.bool_(True), np.array(3.0), np.empty((0, 3), np.int16)),
    *(
        np.ones((2, 2), dtype)[:1]
        for dtype in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8")
    ),
    [
        np.float16(1),
        {"a": collections.OrderedDict({"b": (1, [None])}), "~": 1},
        collections.OrderedDict({2: 1, "2": 2}),
    ],
    *(np.arange(12).reshape(3, 4)[:, ::2], np.asfortranarray(np.arange(6.0).reshape(2, 3))),
]


def test_values_with_a_history_of_getting_lost():
    for value in LOST_BEFORE:
        assert_same(through_a_document(value), value)


def test_plain_values_stay_readable_and_arrays_have_the_names_of_places():
    value = {"step": 3, "name": "run", "lr": [0.1, None, True], "nested": {"a": {}}}
    assert encode_tree(value, "user", []) == value
    as_text = {"$int": hex(2**53)}  # readers in other languages round it
    assert encode_tree([2**53 - 1, 2**53], "user", []) == [2**53 - 1, as_text]
    assert encode_tree(2**53, "user", []) == as_text
    tensors = {"x": np.zeros(3)}
    decode_tree({"$array": "x"}, tensors)[:] = 1
    assert not tensors["x"].any()  # it is a copy
    leaves = []
    encode_tree({"a": [np.ones(1), {"b/c": np.ones(1)}], 2: np.ones(1)}, "user/x", leaves)
    assert [leaf.name for leaf in leaves] == ["user/x/#0/0", "user/x/#0/1/b~1c", "user/x/#1"]
    assert {leaf.role for leaf in leaves} == {"state"}


Colour, Name = enum.IntEnum("Colour", ["RED"], module=__name__), type("Name", (str,), {})
Point = collections.namedtuple("Point", "x y")


UNRESTORABLE = [
    *((value, f"user/x: a builtins.{type(value).__name__}") for value in ({1, 2}, object(), 1j, bytearray(b"x"))),
    *(
        (value, rf"user/x: a test_state_encoding\.{type(value).__name__}")
        for value in (Colour.RED, Name("x"), Point(1, 2))
    ),
    (collections.defaultdict(int), r"user/x: a collections\.defaultdict"),
    ({"a": [0, {"b": ({1},)}]}, "user/x/a/1/b/0: a builtins.set"),
    ({"a/b": {1}}, "user/x/a~1b: a builtins.set"),
    ({(1,): {"z": {1}}}, "user/x/#0/z: a builtins.set"),
    ({1: 1, frozenset(): 1}, r"user/x/#1\.key: a builtins.frozenset"),
    *(({"a": value}, "user/x/a: dtype .* cannot be stored") for value in (np.str_("text"), np.ones(2, ">f4"))),
    ({"a": np.ma.masked_array([1.0, 2.0], [True, False])}, r"user/x/a: a numpy\.ma.*MaskedArray"),
    ({"a": "\ud800"}, "user/x/a: the text .* not valid Unicode"),
    ({"\ud800": 1}, "user/x: the text .* not valid Unicode"),
]


def test_unrestorable_value_is_refused_with_its_path():
    rows = [(value, f"^{message}") for value, message in UNRESTORABLE]
    assert unrefused(TypeError, lambda value: encode_tree(value, "user/x", []), rows) == {}


def nested(depth: int, wrap):
    value = 2**60
    for _ in range(depth):
        value = wrap(value)
    return value


def test_deepest_accepted_tree_decodes_again_and_deeper_is_refused():
    """Each level of an ordered dictionary is four levels of JSON."""
    wraps = [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}]
    deepest = nested(32, lambda v: collections.OrderedDict({1: v}))
    for value in (*(nested(64, wrap) for wrap in wraps), deepest):
        assert_same(through_a_document(value), value)
    too_deep = [{1: deepest}, *(nested(depth, wrap) for wrap in wraps for depth in (65, 100_000))]
    for value in too_deep:  # their `repr` would be too deep, too
        with pytest.raises(ValueError, match=r"^user[^:]*: nested more than 64 levels deep"):
            encode_tree(value, "user", [])


HOSTILE = {
    "unknown tag": [
        *({"$pickle": "gASV"}, {"$": 1}, {"$" + "x" * 10**6: 1}, {"$int": "0x1", "a": 1}, {"a": 1, "$int": "0x1"}),
        [[{"a": {"$dict": [[1, {"$tuple": [{"$evil": 0}]}]]}}]],
    ],
    r"\$int": [{"$int": value} for value in ("12", 12, "0x", "0x_1", " 0x1", None, ["0x1"])],
    r"\$float": [{"$float": value} for value in ("", "00", "00" * 9, "zz" * 8, 1.0)],
    r"\$bytes": [{"$bytes": 1}],
    "base64": [{"$bytes": "####"}],
    "padding": [{"$bytes": "YQ"}],
    "ASCII": [{"$bytes": "\u0661"}],
    "which the checkpoint does not hold": [
        *({"$array": value} for value in ("absent", "y" * 10**6, None, ["one"])),
        {"$scalar": "absent"},
    ],
    r"\$scalar": [{"$scalar": "three"}],
    r"\$tuple": [{"$tuple": {"a": 1}}, {"$tuple": "abc"}],
    r"\$dict": [
        *({"$dict": value} for value in ({"a": 1}, [[1]], [[1, 2, 3]], ["ab"], [[1, 2], [1, 3]])),
        *({"$dict": [[key, 2]]} for key in ([1], {"a": 1}, {"$array": "three"}, {"$tuple": [[1]]})),
    ],
    r"\$ordered": [{"$ordered": value} for value in ([[1, 2]], {"$tuple": []}, {"$ordered": {}})],
}


def test_hostile_trees_are_refused():
    tensors = {"one": np.array(1), "three": np.arange(3)}
    rows = [(value, message) for message, values in HOSTILE.items() for value in values]
    assert unrefused(ValueError, lambda value: decode_tree(value, tensors), rows, most=300) == {}
