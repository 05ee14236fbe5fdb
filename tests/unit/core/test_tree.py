from __future__ import annotations

import collections
import enum
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.tree import decode_tree, encode_tree
from ckptkit.format.documents import RankManifest, decode, encode
from ckptkit.format.shards import plan_shards


def through_a_document(value):
    """Encode, write as the rank's file, read, decode."""
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
    """Equal and of the same types all the way down, floats and arrays to the bit."""
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()
    elif isinstance(wanted, float):
        assert bits(found) == bits(wanted)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, dict):
        assert_same(list(found.items()), list(wanted.items()))
    else:
        assert found == wanted


NUMPY_DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"]


@st.composite
def arrays(draw):
    dtype = np.dtype(draw(st.sampled_from(NUMPY_DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    data = draw(st.binary(min_size=(size := math.prod(shape) * dtype.itemsize), max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape)


FLOATS = st.one_of(st.floats(), st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack("<d", data)[0]))
INTEGERS = st.one_of(st.integers(), st.integers(-(2**20000), 2**20000), st.sampled_from([2**53, 2**53 - 1, -(2**53)]))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS, st.binary())
NUMPY_SCALARS = arrays().filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
KEYS = st.recursive(st.one_of(SCALARS, NUMPY_SCALARS), lambda keys: st.lists(keys, max_size=3).map(tuple))
TAGS = st.sampled_from(["$int", "$float", "$tuple", "$dict", "$array", "$scalar", "$", "a/b", "a~1b", "~", "#0"])
TREES = st.recursive(
    st.one_of(SCALARS, arrays(), NUMPY_SCALARS),
    lambda trees: st.one_of(
        st.lists(trees, max_size=4),
        st.lists(trees, max_size=4).map(tuple),
        st.dictionaries(st.one_of(TEXTS, TAGS), trees, max_size=4),
        st.dictionaries(KEYS, trees, max_size=4),
        st.dictionaries(TEXTS | KEYS, trees, max_size=4).map(collections.OrderedDict),
    ),
    max_leaves=12,
)


@given(TREES)
def test_encoded_tree_decodes_to_equal_types_and_values(value):
    assert_same(through_a_document(value), value)


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        0.1,
        1e16,
        123456789012345680.0,
        math.inf,
        -math.inf,
        struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0],
        struct.unpack("<d", bytes.fromhex("efbeaddeefbefaff"))[0],
        True,
        1,
        1.0,
        2**53 - 1,
        2**53,
        -(2**53) - 1,
        10**5000,
        -(10**5000),
        "",
        "\U0001f40d\x00\u2028",
        b"",
        bytes(range(256)),
        [],
        (),
        {},
        ((),),
        {"": None},
        {1: "int", "1": "str", (1,): "tuple", None: "none", b"1": "bytes", 1.5: "float"},
        {True: 1},
        {math.inf: 1},
        {"b": 1, "a": {"z": 2, "y": 3}},
        {("a", (2, 3.0)): [1]},
        {"$int": "12"},
        {"$tuple": [1]},
        {"$dict": {"$array": "x"}},
        {"a/b": np.int8(1), "a": {"b": np.int8(2)}},
        {"a~1b": np.int8(1), "a/b": np.int8(2), "a~b": np.int8(3)},
        {np.int64(1): {"key": np.int64(2)}, "#0": np.int64(3), "#0.key": np.int64(4)},
        {np.float32(1.5): np.ones(2)},
        np.random.RandomState(3).get_state(),
        np.random.default_rng(3).bit_generator.state,
        np.float64(0.1),
        np.bool_(True),
        np.array(3.0),
        np.empty((0, 3), np.int16),
        np.arange(12).reshape(3, 4)[:, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=lambda value: f"{type(value).__name__}-{str(type(value)) if isinstance(value, int) else str(value)[:30]}",
)
def test_values_with_a_history_of_getting_lost(value):
    assert_same(through_a_document(value), value)


def test_decoded_array_is_a_copy():
    tensors = {"x": np.zeros(3)}
    decode_tree({"$array": "x"}, tensors)[:] = 1
    assert not tensors["x"].any()


def test_plain_values_stay_readable():
    value = {"step": 3, "name": "run", "lr": [0.1, None, True], "nested": {"a": {}}}
    assert encode_tree(value, "user", []) == value


def test_arrays_are_named_by_their_place():
    leaves = []
    encode_tree({"a": [np.ones(1), {"b/c": np.ones(1)}], 2: np.ones(1)}, "user/x", leaves)
    assert [leaf.name for leaf in leaves] == ["user/x/#0/0", "user/x/#0/1/b~1c", "user/x/#1"]
    assert {leaf.role for leaf in leaves} == {"state"}


class Colour(enum.IntEnum):
    RED = 1


class Name(str):
    __slots__ = ()


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "user/x: a builtins.set cannot be stored"),
        (object(), "user/x: a builtins.object"),
        (1j, "user/x: a builtins.complex"),
        (bytearray(b"x"), "user/x: a builtins.bytearray"),
        (Colour.RED, r"user/x: a test_tree\.Colour"),
        (Name("x"), r"user/x: a test_tree\.Name"),
        (Point(1, 2), r"user/x: a test_tree\.Point"),
        (collections.defaultdict(int), r"user/x: a collections\.defaultdict"),
        (len, "user/x: a builtins.builtin_function_or_method"),
        ({"a": [0, {"b": ({1},)}]}, "user/x/a/1/b/0: a builtins.set"),
        ({"a/b": {1}}, "user/x/a~1b: a builtins.set"),
        ({(1,): {"z": {1}}}, "user/x/#0/z: a builtins.set"),
        ({1: 1, frozenset(): 1}, r"user/x/#1\.key: a builtins.frozenset"),
        ({"a": np.array([None])}, "user/x/a: dtype object cannot be stored"),
        ({"a": np.array(["text"])}, "user/x/a: dtype <U4 cannot be stored"),
        ({"a": np.str_("text")}, "user/x/a: dtype <U4 cannot be stored"),
        ({"a": np.complex128(1)}, "user/x/a: dtype complex128 cannot be stored"),
        ({"a": np.longdouble(1)}, "user/x/a: dtype float128 cannot be stored"),
        ({"a": np.datetime64("2020-01-01")}, r"user/x/a: dtype datetime64\[D\] cannot be stored"),
        ({"a": np.ones(2, ">f4")}, "user/x/a: dtype >f4 cannot be stored"),
        ({"a": np.ma.masked_array([1.0, 2.0], [True, False])}, r"user/x/a: a numpy\.ma.*MaskedArray"),
        ({"a": np.zeros(2, "f4,i4").view(np.recarray)}, r"user/x/a: a numpy\..*recarray"),
        ({"a": "\ud800"}, "user/x/a: the text .* not valid Unicode"),
        ({"\ud800": 1}, "user/x: the text .* not valid Unicode"),
    ],
)
def test_unrestorable_value_is_refused_with_its_path(value, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        encode_tree(value, "user/x", [])


def nested(depth: int, wrap):
    value = 2**60
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS = [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}]


@pytest.mark.parametrize("wrap", WRAPS)
def test_deepest_accepted_tree_decodes_again(wrap):
    assert_same(through_a_document(nested(64, wrap)), nested(64, wrap))


def test_deepest_accepted_ordered_dict_decodes_again():
    """Each level of it is four levels of JSON."""
    deepest = nested(32, lambda v: collections.OrderedDict({1: v}))
    assert_same(through_a_document(deepest), deepest)
    with pytest.raises(ValueError, match=r"^user[^:]*: nested more than 64 levels deep"):
        encode_tree({1: deepest}, "user", [])


@pytest.mark.parametrize("depth", [65, 100_000])
@pytest.mark.parametrize("wrap", WRAPS)
def test_deeper_is_refused(wrap, depth):
    with pytest.raises(ValueError, match=r"^user[^:]*: nested more than 64 levels deep"):
        encode_tree(nested(depth, wrap), "user", [])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"$pickle": "gASV"}, "unknown tag '\\$pickle'"),
        ({"$": 1}, "unknown tag"),
        ({"$" + "x" * 10**6: 1}, "unknown tag"),
        ({"$int": "0x1", "a": 1}, "unknown tag"),
        ({"a": 1, "$int": "0x1"}, "unknown tag"),
        ({"$int": "12"}, r"\$int"),
        ({"$int": 12}, r"\$int"),
        ({"$int": "0x"}, r"\$int"),
        ({"$int": "0x_1"}, r"\$int"),
        ({"$int": " 0x1"}, r"\$int"),
        ({"$int": None}, r"\$int"),
        ({"$int": ["0x1"]}, r"\$int"),
        ({"$float": ""}, r"\$float"),
        ({"$float": "00"}, r"\$float"),
        ({"$float": "00" * 9}, r"\$float"),
        ({"$float": "zz" * 8}, r"\$float"),
        ({"$float": 1.0}, r"\$float"),
        ({"$bytes": 1}, r"\$bytes"),
        ({"$bytes": "####"}, "base64"),
        ({"$bytes": "YQ"}, "padding"),
        ({"$bytes": "\u0661"}, "ASCII"),
        ({"$array": "absent"}, "'absent', which the checkpoint does not hold"),
        ({"$array": "y" * 10**6}, "which the checkpoint does not hold"),
        ({"$array": None}, "which the checkpoint does not hold"),
        ({"$array": ["one"]}, "which the checkpoint does not hold"),
        ({"$scalar": "absent"}, "which the checkpoint does not hold"),
        ({"$scalar": "three"}, r"has the shape \(3,\)"),
        ({"$tuple": {"a": 1}}, r"\$tuple"),
        ({"$tuple": "abc"}, r"\$tuple"),
        ({"$dict": {"a": 1}}, r"\$dict"),
        ({"$dict": [[1]]}, r"\$dict"),
        ({"$ordered": [[1, 2]]}, r"\$ordered.*not a dictionary"),
        ({"$ordered": {"$tuple": []}}, r"\$ordered.*not a dictionary"),
        ({"$ordered": {"$ordered": {}}}, r"\$ordered.*not a dictionary"),
        ({"$dict": [[1, 2, 3]]}, r"\$dict"),
        ({"$dict": ["ab"]}, r"\$dict"),
        ({"$dict": [[[1], 2]]}, r"\$dict.*unhashable"),
        ({"$dict": [[{"a": 1}, 2]]}, r"\$dict.*unhashable"),
        ({"$dict": [[{"$array": "three"}, 2]]}, r"\$dict.*unhashable"),
        ({"$dict": [[{"$tuple": [[1]]}, 2]]}, r"\$dict.*unhashable"),
        ({"$dict": [[1, 2], [1, 3]]}, "key twice"),
        ([[{"a": {"$dict": [[1, {"$tuple": [{"$evil": 0}]}]]}}]], "unknown tag"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_hostile_trees_are_refused(value, message):
    with pytest.raises(ValueError, match=message) as caught:
        decode_tree(value, {"one": np.array(1), "three": np.arange(3)})
    assert len(str(caught.value)) < 300


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.sampled_from(["t", "0x1", "00" * 8])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["a", "$int", "$float", "$bytes", "$array", "$scalar", "$tuple", "$dict", "$ordered", "$x"]
            ),
            inner,
            max_size=2,
        ),
        st.lists(st.lists(inner, min_size=2, max_size=2), max_size=2).map(lambda pairs: {"$dict": pairs}),
    ),
)


@given(JSON)
def test_any_json_decodes_or_is_a_value_error(value):
    try:
        decode_tree(value, {"t": np.arange(3)})
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right; any other exception fails the test
