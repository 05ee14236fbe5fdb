"""Sharded leaves on another cut: the right bits, and no more bytes than the blocks that hold them."""

from __future__ import annotations

import itertools
import math
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.dict_storage import Counted, DictStorage
from support.runs.rank_files import documents_of, leaf, opened, write_ranks
from support.wire import Wire

from ckptkit.checkpoint.parts import CutOut, copy_taken, spans
from ckptkit.checkpoint.read import load, verify
from ckptkit.core.contents import Buffers, TensorInfo, WantedPart
from ckptkit.core.placement import Box
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import Part, TensorEntry

# One cut of an axis of n: ascending places from 0 to n, some of them equal, so that some parts are empty.
SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@st.composite
def cuts(draw, shape):
    """Boxes that tile ``shape``: a grid, uneven, maybe with empty ones, maybe not in order."""
    axes = []
    for size in shape:
        places = sorted([0, size, *draw(st.lists(st.integers(0, size), max_size=3))])
        axes.append(list(itertools.pairwise(places)))
    return draw(st.permutations([tuple(one) for one in itertools.product(*axes)]))


@st.composite
def two_cuts(draw):
    shape = draw(SHAPES)
    return shape, draw(cuts(shape)), draw(cuts(shape))


def slices(cut):
    return tuple(slice(*one) for one in cut)


def box_of(shape, cut):
    return Box(tuple(shape), tuple(start for start, _ in cut))


def stored(whole, boxes, *, name="z", extra=(), **options):
    """Each of ``boxes`` held by a rank of its own."""
    parts = [np.ascontiguousarray(whole[slices(cut)]) for cut in boxes]
    ranks = [[*extra, leaf(name, part, box_of(whole.shape, cut))] for part, cut in zip(parts, boxes, strict=True)]
    return write_ranks(ranks, **options)


def wanted_of(whole, cut, name="z"):
    """A part to be read, and where its bits will be."""
    found = np.full(tuple(stop - start for start, stop in cut), 77, whole.dtype)
    memory = found.reshape(-1).view(np.uint8).data
    return WantedPart(name, box_of(whole.shape, cut), found.shape, memory), found


def bytes_read(storage):
    return sum(storage.lengths)


class Measured(Counted):
    """Also notes how many bytes each read asked for."""

    def __init__(self, inner):
        super().__init__(inner)
        self.lengths = []

    def read_into(self, key, buffers, offset_bytes=0):
        self.lengths.append(sum(map(len, buffers)))
        return super().read_into(key, buffers, offset_bytes)


def runs_of(whole, held, cut):
    """The overlap of a part with a stored one, as numbers of runs of consecutive bytes, and bytes."""
    shape = tuple(stop - start for start, stop in held)
    places = np.arange(math.prod(shape)).reshape(shape)
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, cut, strict=True)]
    if any(start >= stop for start, stop in both):
        return 0, 0
    local = tuple(slice(start - at, stop - at) for (start, stop), (at, _) in zip(both, held, strict=True))
    taken = places[local].reshape(-1)
    return 1 + int((np.diff(taken) != 1).sum()), taken.size * whole.dtype.itemsize


@settings(max_examples=150, deadline=None)
@given(two_cuts(), st.sampled_from([1, 5, 8, 64, 1 << 20]), st.sampled_from([1, 16, 200, 1 << 20]))
def test_any_cut_is_read_from_any_other(case, block_bytes, window_bytes):
    shape, held, asked = case
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) + 1000
    inner = stored(whole, held, block_bytes=block_bytes)
    inner.window_bytes = window_bytes
    storage = Measured(inner)
    told = []
    contents = load(storage, opened(storage), report=told.append)
    for cut in asked:
        storage.lengths.clear()
        told.clear()
        part, found = wanted_of(whole, cut)
        done = []
        contents.read_parts([part], done.append)
        assert (found == whole[slices(cut)]).all()
        assert done == ["z"]
        runs, size_bytes = map(sum, zip(*(runs_of(whole, one, cut) for one in held), strict=True))
        assert bytes_read(storage) <= size_bytes + 2 * block_bytes * runs
        assert bytes_read(storage) >= size_bytes
        assert sum(told) == bytes_read(storage)


@settings(max_examples=60, deadline=None)
@given(two_cuts(), st.sampled_from([3, 64, 1 << 20]))
def test_all_parts_at_once_read_no_block_twice(case, block_bytes):
    shape, held, asked = case
    whole = np.random.default_rng(1).standard_normal(shape)
    storage = Measured(stored(whole, held, block_bytes=block_bytes))
    contents = load(storage, opened(storage))
    parts = [wanted_of(whole, cut) for cut in asked]
    done = []
    contents.read_parts([part for part, _ in parts], done.append)
    assert all((found == whole[slices(cut)]).all() for (_, found), cut in zip(parts, asked, strict=True))
    assert done == ["z"] * len(asked)
    assert bytes_read(storage) <= opened(storage).size_bytes


@settings(max_examples=40, deadline=None)
@given(two_cuts())
def test_the_whole_is_read_from_any_cut(case):
    shape, held, _ = case
    whole = np.random.default_rng(1).standard_normal(shape, np.float32)
    storage = stored(whole, held, extra=[leaf("w", np.arange(12))])
    verify(storage, opened(storage))
    contents = load(storage, opened(storage))
    assert contents.entries["z"].shape == shape
    assert contents.entries["z"].placement == "sharded"
    assert (contents.tensors["z"] == whole).all()
    assert (contents.tensors["w"] == np.arange(12)).all()
    assert (contents.peek("z") == whole).all()


def grid(shape, *counts):
    axes = [
        [(size * one // count, size * (one + 1) // count) for one in range(count)]
        for size, count in zip(shape, counts, strict=True)
    ]
    return list(itertools.product(*axes))


def test_the_same_cut_is_the_same_call():
    whole = np.random.default_rng(1).standard_normal((64, 48), np.float32)
    boxes = grid(whole.shape, 4, 1)
    storage = Measured(stored(whole, boxes))
    for cut in boxes:
        contents = load(storage, opened(storage))
        storage.reset()
        storage.lengths.clear()
        part, found = wanted_of(whole, cut)
        contents.read_parts([part])
        assert (found == whole[slices(cut)]).all()
        assert len([call for call in storage.calls if call.operation == "read_into"]) == 1
        assert bytes_read(storage) < 1.1 * found.nbytes  # its own file: a header more


def test_large_leaves_are_read_in_mebibyte_blocks():
    whole = np.arange(3 << 20, dtype=np.int64).reshape(3072, 1024)  # 24 MiB
    storage = Measured(stored(whole, grid(whole.shape, 2, 1)))
    contents = load(storage, opened(storage))
    part, found = wanted_of(whole, ((1500, 1600), (0, 1024)))
    contents.read_parts([part])
    assert (found == whole[1500:1600]).all()
    assert bytes_read(storage) <= found.nbytes + 4 * (1 << 20)


def test_column_of_row_cut_reads_blocks_once():
    whole = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)
    storage = Measured(stored(whole, grid(whole.shape, 4, 1), block_bytes=1024))
    contents = load(storage, opened(storage))
    part, found = wanted_of(whole, ((0, 512), (3, 7)))
    contents.read_parts([part])
    assert (found == whole[:, 3:7]).all()
    assert bytes_read(storage) <= 512 * 2 * 1024


def altered(storage, key, position):
    data = bytearray(storage.files[key])
    data[position] ^= 1
    return DictStorage({**storage.files, key: bytes(data)})


def test_altered_byte_in_read_block_is_found():
    whole = np.arange(1000, dtype=np.int64)
    storage = stored(whole, grid(whole.shape, 2), block_bytes=256)
    key = next(key for key in storage.files if "rank-00001/" in key)
    broken = altered(storage, key, -1)
    contents = load(broken, opened(broken))
    part, found = wanted_of(whole, ((500, 520),))
    contents.read_parts([part])
    assert (found == whole[500:520]).all()
    part, found = wanted_of(whole, ((490, 1000),))
    with pytest.raises(CorruptCheckpointError, match=rf"block \d+ of {key} has the digest"):
        contents.read_parts([part])
    assert found[-1] == 77  # nothing of that block arrived
    with pytest.raises(CorruptCheckpointError, match=key):
        contents.prove(["z"])
    with pytest.raises(CorruptCheckpointError, match=key):
        verify(broken, opened(broken))


def test_block_is_read_once_more_before_it_is_corrupt():
    whole = np.arange(1000, dtype=np.int64)
    wire = Wire(stored(whole, grid(whole.shape, 2), block_bytes=256), "*rank-00001/*", "flip")
    part, found = wanted_of(whole, ((490, 1000),))
    load(wire, opened(wire)).read_parts([part])
    assert (found == whole[490:]).all()
    assert wire.fired == 1


def test_every_byte_of_a_block_counts():
    whole = np.arange(64, dtype=np.int64)
    storage = stored(whole, grid(whole.shape, 1), block_bytes=64)
    (key,) = [key for key in storage.files if key.endswith(".safetensors")]
    part, _ = wanted_of(whole, ((0, 64),))
    header = 8 + int.from_bytes(storage.files[key][:8], "little")
    for position in range(header // 64 * 64, len(storage.files[key])):
        broken = altered(storage, key, position)
        with pytest.raises(CorruptCheckpointError, match="block"):
            load(broken, opened(broken)).read_parts([part])


def test_overlapping_parts_are_refused_before_any_read():
    """The sum of the parts is right, but one overlaps another and leaves a gap elsewhere."""
    whole = np.arange(9, dtype=np.int64)
    storage = Measured(stored(whole, [((0, 3),), ((2, 5),), ((6, 9),)]))
    contents = load(storage, opened(storage))
    for cut, words in ((((0, 5),), "twice"), (((4, 7),), "are missing"), (((0, 9),), "twice")):
        part, _ = wanted_of(whole, cut)
        with pytest.raises(CorruptCheckpointError, match=words):
            contents.read_parts([part])
    assert storage.lengths == []
    part, found = wanted_of(whole, ((0, 2),))
    contents.read_parts([part])  # what is there once is there
    assert (found == [0, 1]).all()


@pytest.mark.parametrize(
    ("global_shape", "offsets", "words"),
    [((9, 1), (0,), "have different numbers of axes"), ((9,), (10,), "are outside"), ((9,), (-1,), "are outside")],
)
def test_a_place_that_cannot_be_is_refused(global_shape, offsets, words):
    with pytest.raises(ValueError, match=words):
        Box(global_shape, offsets)


@pytest.mark.parametrize(
    ("box", "shape", "words"),
    [
        (Box((10,), (0,)), (3,), "has the shape"),
        (Box((9,), (7,)), (3,), "which has no part"),
        (Box((9, 1), (0, 0)), (3, 1), "has the shape"),
        (Box((9,), (0,)), (4,), "the part has 32 bytes"),
    ],
)
def test_a_part_that_cannot_be_is_refused(box, shape, words):
    whole = np.arange(9, dtype=np.int64)
    storage = Measured(stored(whole, grid(whole.shape, 3)))
    contents = load(storage, opened(storage))
    with pytest.raises(ValueError, match=words):
        contents.read_parts([WantedPart("z", box, shape, memoryview(bytearray(24)))])
    with pytest.raises(ValueError, match=r"does not hold the tensors \['y'\]"):
        contents.read_parts([WantedPart("y", box, shape, memoryview(bytearray(24)))])
    assert storage.lengths == []


@pytest.mark.parametrize("placement", ["replicated", "per_rank"])
def test_uncut_leaf_can_be_read_in_parts(placement):
    """A job that shards its optimizer from now on restores what was whole, in one pass over the files."""
    whole = np.arange(60, dtype=np.int64).reshape(12, 5)
    other = np.arange(7, dtype=np.int64)
    storage = Measured(write_ranks([[leaf("z", whole, placement), leaf("o", other, placement)]] * 3))
    contents = load(storage, opened(storage))
    parts = [wanted_of(whole, cut) for cut in (((0, 4), (1, 3)), ((4, 12), (0, 5)))]
    also, seventh = wanted_of(other, ((6, 7),), "o")
    done = []
    contents.read_parts([*(part for part, _ in parts), also], done.append)
    assert (parts[0][1] == whole[:4, 1:3]).all()
    assert (parts[1][1] == whole[4:]).all()
    assert seventh == [6]
    assert sorted(done) == ["o", "z", "z"]
    assert bytes_read(storage) == opened(storage).size_bytes_for(0)


def test_sharded_scalars_and_bfloat16_width():
    whole = np.array(5, np.uint16)
    storage = write_ranks([[leaf("z", whole, Box((), ()))], []])
    contents = load(storage, opened(storage), 1)
    part, found = wanted_of(whole, ())
    contents.read_parts([part])
    assert found == 5
    assert contents.tensors["z"] == 5


def test_whole_leaf_is_released_after_cutting_parts():
    part, found = wanted_of(np.arange(9), ((2, 4),))
    cut_out = CutOut({"z": TensorInfo("I64", (9,), "weights")}, [part], None)
    memory = cut_out.buffer("z")
    memory[:] = np.arange(9).view(np.uint8).data
    whole = weakref.ref(memory.obj.base)  # itself is a view of the bytes
    cut_out.done("z")
    assert (found == [2, 3]).all()
    del memory
    assert whole() is None


@pytest.mark.parametrize(
    ("shape", "part", "words"),
    [
        # Two such pieces would seem to make a whole by their places and sizes alone: a column, and a row behind it.
        ([2, 1], Part(global_shape=[2, 2], offsets=[0, 0]), "not a consecutive part"),
        ([1, 0], Part(global_shape=[2**50, 2**50], offsets=[0, 0]), "too large"),
    ],
)
def test_invalid_tensor_entries_are_refused(shape, part, words):
    fields = {"dtype": "F32", "offset_bytes": 8, "size_bytes": 4 * math.prod(shape), "placement": "replicated"}
    with pytest.raises(ValueError, match=words):
        TensorEntry(name="w", shape=shape, part=part, **fields)


def test_only_sharded_files_have_block_digests():
    storage = stored(np.arange(9.0), grid((9,), 3), extra=[leaf("w", np.ones(5))], block_bytes=100)
    for document in documents_of(storage):
        for shard in document.shards:
            assert (shard.blocks is not None) == (shard.placement == "sharded")
            if shard.blocks is not None:
                assert len(shard.blocks.digests) == math.ceil(shard.size_bytes / 100)


def test_sharded_leaves_of_several_ranks_are_all_read():
    one, other = np.arange(4.0), np.arange(6.0)
    storage = write_ranks([[leaf("y", one, Box((4,), (0,)))], [leaf("z", other, Box((6,), (0,)))]])
    held = {"y": np.empty(4), "z": np.empty(6)}
    load(storage, opened(storage)).read_into(Buffers({name: found.view(np.uint8).data for name, found in held.items()}))
    assert (held["y"] == one).all()
    assert (held["z"] == other).all()


@st.composite
def regions(draw):
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    take = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        take.append(slice(start, draw(st.integers(start + 1, size))))
    return tuple(shape), tuple(take)


@given(regions(), st.integers(1, 40), st.integers(0, 50))
def test_spans_touch_the_blocks_of_taken_bytes_alone(region, block_bytes, offset):
    shape, take = region
    places = offset + np.arange(math.prod(shape)).reshape(shape)[take].reshape(-1)
    touched = {
        block
        for start, stop in spans(shape, take, block_bytes)
        for block in range((offset + start) // block_bytes, -(-(offset + stop) // block_bytes))
    }
    assert touched == set((places // block_bytes).tolist())


@given(regions(), st.data())
def test_copy_takes_what_numpy_takes(region, data):
    shape, take = region
    size = math.prod(shape)
    whole = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    wanted = whole.reshape(shape)[take]
    found = np.zeros_like(wanted)
    ends = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=4))})
    for start, stop in itertools.pairwise(ends):
        copy_taken(whole[start:stop], start, shape, take, found)
    assert (found == wanted).all()
