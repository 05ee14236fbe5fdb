"""Ranks share out what they hold alike: every byte once, shares even, pieces no copies."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.core.contents import Capture
from ckptkit.core.placement import Box, first_element, is_one_run
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import DTYPES, Leaf, LeafSpec
from ckptkit.format.documents import Blocks
from ckptkit.format.shards import plan_shards
from ckptkit.snapshot import Handling, StagingArea
from ckptkit.snapshot.partition import partition, taken
from ckptkit.testing.state import NumpyRun

SOME_DTYPES = ["F32", "BF16", "I64", "U8"]
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
LEAVES = st.lists(
    st.tuples(SHAPES, st.sampled_from(SOME_DTYPES), st.sampled_from(["frozen", "cycle", "micro"])), max_size=8
)
RANKS = st.integers(1, 64)


def leaf(name, shape, dtype="F32", lifetime="cycle", placement="replicated"):
    spec = LeafSpec(name, "weights", lifetime, dtype, shape, placement)
    bits = np.random.default_rng(len(name) + sum(shape)).integers(0, 256, spec.size_bytes, np.uint8)
    return Leaf(spec, bits.view(DTYPES[dtype]).reshape(shape))


def shares_of(leaves, ranks):
    return [taken(leaves, partition([item.spec for item in leaves], rank, ranks)) for rank in range(ranks)]


def whole_of(pieces):
    spec = pieces[0].spec
    shape = spec.shape if spec.part is None else spec.part.global_shape
    built = np.zeros(math.prod(shape), DTYPES[spec.dtype])
    times = np.zeros(math.prod(shape), np.int64)
    for piece in pieces:
        part = piece.spec.part
        start = 0 if part is None else first_element(part.global_shape, part.offsets)
        assert part is None or is_one_run(part.global_shape, piece.shape)
        assert piece.array.shape == piece.shape
        assert piece.array.dtype.itemsize * piece.array.size == piece.size_bytes
        built[start : start + piece.array.size] = piece.array.reshape(-1)
        times[start : start + piece.array.size] += 1
    assert (times == 1).all()
    return built.reshape(shape)


@given(LEAVES, RANKS)
def test_all_ranks_together_hold_every_byte_once(specification, ranks):
    leaves = [leaf(f"t{n}", *item) for n, item in enumerate(specification)]
    shares = shares_of(leaves, ranks)
    for item in leaves:
        pieces = [piece for share in shares for piece in share if piece.name == item.name]
        assert len(pieces) == 1 or all(piece.spec.part is not None for piece in pieces)
        assert whole_of(pieces).tobytes() == item.array.tobytes()
        assert all(len([piece for piece in share if piece.name == item.name]) <= 1 for share in shares)


@pytest.mark.parametrize(
    "shapes",
    [
        [(32_000, 512), *[shape for _ in range(12) for shape in ((512, 512), (512,), (2048, 512), (512, 2048))], ()],
        *([(500_000, 64), (64, 2)], [(1, 3_000_001)], [(1, 1, 64, 3, 3), (1, 4000, 160)]),
    ],
)
def test_shares_are_even(shapes):
    specs = [LeafSpec(f"t{n}", "weights", "cycle", "F32", shape, "replicated") for n, shape in enumerate(shapes * 3)]
    # No memory is needed to share out: a source that is asked would raise.
    leaves = [Leaf(spec, lambda: pytest.fail("asked")) for spec in specs]
    total = sum(spec.size_bytes for spec in specs)
    for ranks in (1, 2, 3, 7, 16, 64):
        sizes = [sum(piece.size_bytes for piece in share) for share in shares_of(leaves, ranks)]
        assert sum(sizes) == total
        assert all(abs(size - total / ranks) <= 0.1 * total / ranks for size in sizes), ranks


def test_box_is_stored_by_first_replica_and_per_rank_leaf_by_all():
    """And frozen leaves are shared out by themselves."""
    boxes = [Box((4,), (0,)), Box((4,), (2,)), Box((4,), (0,), 1), Box((4,), (2,), 1)]
    shares = [shares_of([leaf("z", (2,), placement=box)], 4)[rank] for rank, box in enumerate(boxes)]
    assert [len(share) for share in shares] == [1, 1, 0, 0]
    assert shares[1][0].spec.placement == boxes[1]
    leaves = [leaf("acc", (30,), placement="per_rank"), leaf("w", (30,))]
    assert all(share[0] is leaves[0] for share in shares_of(leaves, 3))
    for share in shares_of([leaf(name, (1000,), lifetime=name) for name in ("frozen", "cycle", "micro")], 4):
        assert sum(piece.size_bytes for piece in share if piece.lifetime == "frozen") == 1000
        assert sum(piece.size_bytes for piece in share) == 3000


def test_pieces_are_views_and_a_source_is_called_only_by_the_reader():
    leaves = [leaf("a", (100, 3)), leaf("b", (50,))]
    (piece,) = shares_of(leaves, 4)[1]
    assert piece.spec.part == Box((100, 3), (29, 0))
    assert np.shares_memory(piece.array, leaves[0].array)
    asked = []
    (piece,) = shares_of([Leaf(leaves[0].spec, lambda: asked.append(1) or leaves[0].array)], 2)[1]
    assert asked == []
    assert (piece.array == leaves[0].array[50:]).all()
    assert asked == [1]


@given(LEAVES, st.integers(2, 9))
def test_every_share_makes_files_of_one_placement_each(specification, ranks):
    leaves = [leaf(f"t{n}", *item) for n, item in enumerate(specification)]
    leaves += [leaf("own", (5,), placement="per_rank"), leaf("box", (2,), placement=Box((9,), (7,)))]
    assert b"__metadata__" not in plan_shards([leaves[-1].spec])[0].header
    for rank, share in enumerate(shares_of(leaves, ranks)):
        shards = plan_shards([piece.spec for piece in share], 100, rank=rank, ranks=ranks)
        for shard in shards:
            blocks = Blocks(size_bytes=1 << 20, digests=["0" * 32]) if shard.has_blocks else None
            entry = shard.entry(f"x/{shard.role}", "0" * 32, blocks)
            assert shard.has_blocks == (shard.placement == "sharded")
            assert {item.placement for item in entry.tensors} == {shard.placement}
        assert (
            b'"__metadata__":{"rank":"%d/%d"}' % (rank, ranks) in shards[0].header
        )  # frozen files of equal bits differ
        table = [item for shard in shards for item in shard.table]
        assert [item.part is not None for item in table if item.name == "own"] == [False]
        assert [item.part.offsets for item in table if item.name == "box"] == [[7]]


@pytest.mark.parametrize(("lifetime", "ranks"), [("micro", 2), ("cycle", 5), ("frozen", 2), ("cycle", 1)])
def test_a_rank_stages_its_share(ranks, lifetime):
    leaves = (leaf("a", (100, 30), lifetime=lifetime), leaf("b", (7,), lifetime=lifetime))
    capture = Capture(NumpyRun().progress(), leaves, {})
    built = {item.name: bytearray(item.size_bytes) for item in leaves}
    filled = dict.fromkeys(built, 0)
    for rank in range(ranks):
        area = StagingArea()
        for _ in range(2):  # the second with the plan of the first
            window = area.open(capture, SaveCost(), Handling(rank=rank, ranks=ranks))
            files = [(shard, bytearray(shard.size_bytes)) for shard in window.shards]
            for number, (_, data) in enumerate(files):
                assert window.open_shard(number).readinto(memoryview(data)) == len(data)
            window.release()
        for shard, data in files:
            for spec, offset in shard.offsets_bytes():
                start = 0 if spec.part is None else first_element(spec.part.global_shape, spec.part.offsets) * 4
                built[spec.name][start : start + spec.size_bytes] = data[offset : offset + spec.size_bytes]
                filled[spec.name] += spec.size_bytes
    assert {name: bytes(data) for name, data in built.items()} == {item.name: item.array.tobytes() for item in leaves}
    assert filled == {item.name: item.size_bytes for item in leaves}
