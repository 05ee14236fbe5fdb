"""Sharded leaves on another cut: the right bits, and no more bytes than the blocks that hold them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.refusals import unrefused
from support.runs.dict_storage import Counted, DictStorage
from support.runs.rank_files import leaf, opened, write_ranks
from support.wire import Wire

from ckptkit.checkpoint.read import load, verify
from ckptkit.core.contents import Buffers, WantedPart
from ckptkit.core.placement import Box
from ckptkit.errors import CorruptCheckpointError

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
    there = np.full(tuple(stop - start for start, stop in cut), 77, whole.dtype)
    memory = there.reshape(-1).view(np.uint8).data
    return WantedPart(name, box_of(whole.shape, cut), there.shape, memory), there


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


COLUMNS_OF_A_WHOLE = ((8, 9), [((0, 8), (0, 9))], [((0, 8), (0, 2)), ((0, 8), (2, 9))])


@settings(max_examples=80, deadline=None)
@example(COLUMNS_OF_A_WHOLE, 8, 200)  # blocks between those of two rows are left out
@given(two_cuts(), st.sampled_from([1, 5, 8, 64, 1 << 20]), st.sampled_from([1, 16, 200, 1 << 20]))
def test_any_cut_is_read_from_any_other(case, block_bytes, window_bytes):
    """Each part alone, all at once, and the whole."""
    shape, held, asked = case
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) + 1000
    inner = stored(whole, held, block_bytes=block_bytes, extra=[leaf("w", np.arange(12))])
    inner.window_bytes = window_bytes
    storage = Measured(inner)
    told, done = [], []
    contents = load(storage, opened(storage), report=told.append)
    for cut in asked:
        storage.lengths.clear()
        told.clear()
        done.clear()
        part, there = wanted_of(whole, cut)
        contents.read_parts([part], done.append)
        assert (there == whole[slices(cut)]).all()
        assert done == ["z"]
        runs, size_bytes = map(sum, zip(*(runs_of(whole, part, cut) for part in held), strict=True))
        assert size_bytes <= sum(told) == sum(storage.lengths) <= size_bytes + 2 * block_bytes * runs
    storage.lengths.clear()
    done.clear()
    parts = [wanted_of(whole, cut) for cut in asked]
    contents.read_parts([part for part, _ in parts], done.append)
    assert all((there == whole[slices(cut)]).all() for (_, there), cut in zip(parts, asked, strict=True))
    assert done == ["z"] * len(asked)
    assert sum(storage.lengths) <= opened(storage).size_bytes  # no block twice
    assert (contents.entries["z"].shape, contents.entries["z"].placement) == (shape, "sharded")
    assert (contents.tensors["z"] == whole).all()
    assert (contents.tensors["w"] == np.arange(12)).all()
    assert (contents.peek("z") == whole).all()
    verify(storage, opened(storage))


def grid(shape, *counts):
    axes = [
        [(size * one // count, size * (one + 1) // count) for one in range(count)]
        for size, count in zip(shape, counts, strict=True)
    ]
    return list(itertools.product(*axes))


def test_the_same_cut_is_one_call():
    whole = np.random.default_rng(1).standard_normal((64, 48), np.float32)
    for cut in grid(whole.shape, 4, 1):
        storage = Measured(stored(whole, grid(whole.shape, 4, 1), block_bytes=64))
        contents = load(storage, opened(storage))
        part, there = wanted_of(whole, cut)
        contents.read_parts([part])
        assert (there == whole[slices(cut)]).all()
        assert len(storage.lengths) == 1
        assert storage.lengths[0] <= there.nbytes + 400  # its own file has a header more


def test_altered_byte_in_read_block_is_found():
    """A block is read once more before it is corrupt."""
    whole = np.arange(1000, dtype=np.int64)
    storage = stored(whole, grid(whole.shape, 2), block_bytes=256)
    key = next(key for key in storage.files if "rank-00001/" in key)
    data = storage.files[key]
    broken = DictStorage({**storage.files, key: data[:-1] + bytes([data[-1] ^ 1])})
    contents = load(broken, opened(broken))
    part, there = wanted_of(whole, ((500, 520),))
    contents.read_parts([part])
    assert (there == whole[500:520]).all()
    part, there = wanted_of(whole, ((490, 1000),))
    with pytest.raises(CorruptCheckpointError, match=rf"block \d+ of {key} has the digest"):
        contents.read_parts([part])
    assert there[-1] == 77  # nothing of that block arrived
    for read in (lambda: contents.prove(["z"]), lambda: verify(broken, opened(broken))):
        with pytest.raises(CorruptCheckpointError, match=key):
            read()
    wire = Wire(storage, "*rank-00001/*", "flip")
    load(wire, opened(wire)).read_parts([part])
    assert (wire.fired, there.tolist()) == (1, [*range(490, 1000)])


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
    part, there = wanted_of(whole, ((0, 2),))
    contents.read_parts([part])  # what is there once is there
    assert (there == [0, 1]).all()


def test_a_part_that_cannot_be_is_refused():
    whole = np.arange(9, dtype=np.int64)
    storage = Measured(stored(whole, grid(whole.shape, 3)))
    contents = load(storage, opened(storage))
    rows = [
        (("z", Box((10,), (0,)), (3,)), "has the shape"),
        (("z", Box((9,), (7,)), (3,)), "which has no part"),
        (("z", Box((9, 1), (0, 0)), (3, 1)), "has the shape"),
        (("z", Box((9,), (0,)), (4,)), "the part has 32 bytes"),
        (("y", Box((9,), (0,)), (3,)), r"does not hold the tensors \['y'\]"),
    ]
    memory = memoryview(bytearray(24))
    assert unrefused(ValueError, lambda given: contents.read_parts([WantedPart(*given, memory)]), rows) == {}
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
    assert sum(storage.lengths) == opened(storage).size_bytes_for(0)


def test_sharded_scalars_and_several_ranks_leaves_are_read():
    """In one call; each rank holds one of them."""
    wholes = {"y": np.arange(4.0), "z": np.arange(600.0)}
    storage = write_ranks([[leaf(name, whole, Box(whole.shape, (0,)))] for name, whole in wholes.items()])
    held = {name: np.empty(whole.shape) for name, whole in wholes.items()}
    load(storage, opened(storage)).read_into(Buffers({name: there.view(np.uint8).data for name, there in held.items()}))
    assert all((held[name] == whole).all() for name, whole in wholes.items())
    whole = np.array(5, np.uint16)
    storage = write_ranks([[leaf("z", whole, Box((), ()))], []])
    contents = load(storage, opened(storage), 1)
    part, there = wanted_of(whole, ())
    contents.read_parts([part])
    assert there == 5
    assert contents.tensors["z"] == 5
