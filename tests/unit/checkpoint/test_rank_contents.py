"""What many ranks stored comes back whole: replicated leaves from all of them, each rank's own from its own files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors
from support.runs.dict_storage import Counted, DictStorage
from support.runs.rank_files import NAME, commit, documents_of, leaf, opened, write_ranks

from ckptkit.checkpoint.read import check_sizes, load, verify
from ckptkit.checkpoint.shard_bytes import StoredLeaves
from ckptkit.core.contents import Buffers
from ckptkit.core.placement import Box
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import Part, RankManifest

GENERATOR = np.random.default_rng(6)
WEIGHTS = {
    "embedding": GENERATOR.standard_normal((101, 16), np.float32),
    "dense": GENERATOR.standard_normal((1, 333), np.float32),
    "bias": np.arange(7, dtype=np.int64),
    "step": np.array(5, np.int64),
    "none": np.zeros((0, 3), np.float32),
}
MOMENTS = {f"{name}.m": array * 3 for name, array in WEIGHTS.items()}
FROZEN = {"tokens": GENERATOR.standard_normal((40, 5), np.float32)}


def held_by(rank):
    """The state of one rank: its accumulators and generator are its own."""
    own = np.random.default_rng(100 + rank)
    return [
        *(leaf(name, array) for name, array in WEIGHTS.items()),
        *(leaf(name, array, role="optimizer") for name, array in MOMENTS.items()),
        *(leaf(name, array, lifetime="frozen") for name, array in FROZEN.items()),
        leaf("acc", own.standard_normal(20, np.float32), "per_rank", role="accumulators", lifetime="micro"),
        leaf("rng", own.integers(0, 9, 4), "per_rank", role="state", lifetime="micro"),
    ]


def world_of(ranks, **options):
    states = [{"rank": rank} for rank in range(ranks)]
    return write_ranks([held_by(rank) for rank in range(ranks)], states=states, **options)


def flat(array):
    return array.reshape(-1).view(np.uint8).data


def same(found, leaves):
    wanted = {one.name: one.array for one in leaves}
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].shape, found[name].dtype, found[name].tobytes()) == (
            array.shape,
            array.dtype,
            array.tobytes(),
        ), name


@pytest.mark.parametrize("shard_bytes", [300, 1 << 30])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16])
def test_every_rank_gets_back_what_it_held(ranks, shard_bytes):
    storage = world_of(ranks, shard_bytes=shard_bytes)
    verify(storage, opened(storage))
    for rank in range(ranks):
        contents = load(storage, opened(storage), rank)
        same(contents.tensors, held_by(rank))
        assert (contents.rank, contents.world_size, contents.state) == (rank, ranks, {"rank": rank})
        assert contents.entries["embedding"].placement == "replicated"
        assert contents.entries["embedding"].shape == (101, 16)
        assert contents.entries["acc"].placement == "per_rank"


def test_of_rank_equals_loading_that_rank():
    storage = world_of(3)
    contents = load(storage, opened(storage), 1)
    for rank in (0, 1, 2):
        other = contents.of_rank(rank)
        same(other.tensors, held_by(rank))
        assert (other.rank, other.world_size, other.state) == (rank, 3, {"rank": rank})
        assert other.of_rank(1).state == {"rank": 1}


def test_a_rank_needs_no_state_of_another():
    storage = world_of(3)
    whole = opened(storage)
    bare = [one if one.rank == 1 else one.model_copy(update={"state": {}}) for one in whole.ranks]
    contents = load(storage, type(whole)(whole.name, whole.commit, whole.manifest, tuple(bare)), 1)
    same(contents.tensors, held_by(1))
    assert contents.state == {"rank": 1}


@pytest.mark.parametrize("window_bytes", [7, 100, 1 << 20])
def test_pieces_are_read_into_memory_of_the_leaf(window_bytes, monkeypatch):
    monkeypatch.setattr(DictStorage, "window_bytes", window_bytes)
    storage = world_of(4)
    contents = load(storage, opened(storage), 2)
    found = {name: np.full_like(array, 9) for name, array in WEIGHTS.items()}
    done = []
    sink = Buffers({name: flat(array) for name, array in found.items()})
    sink.done = done.append
    contents.read_into(sink)
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in WEIGHTS.items()}
    assert sorted(done) == sorted(WEIGHTS)


def reads(storage):
    return [call.keys[0] for call in storage.calls if call.operation == "read_into"]


def test_only_needed_files_are_read_and_once():
    storage = Counted(world_of(4))
    contents = load(storage, opened(storage), 2)
    storage.reset()
    contents.read_into(Buffers({"acc": flat(np.empty(20, np.float32))}))
    assert reads(storage) == [f"{NAME.rank_folder(2)}/accumulators-002.safetensors"]
    storage.reset()
    contents.read_into(Buffers({"embedding": flat(np.empty((101, 16), np.float32))}))
    (pieces,) = [
        one.pieces for name, one in StoredLeaves(opened(storage).ranks).of_rank(2).items() if name == "embedding"
    ]
    assert sorted(reads(storage)) == sorted(piece.shard.key for piece in pieces)
    assert len(pieces) > 1


def test_bytes_for_a_rank_are_read_once():
    told = []
    storage = world_of(4)
    contents = load(storage, opened(storage), 3, report=told.append)
    assert contents.tensors
    assert sum(told) == opened(storage).size_bytes_for(3)
    assert sum(opened(storage).size_bytes_for(rank) for rank in range(4)) > opened(storage).size_bytes


def test_leaf_of_many_pieces_asks_for_memory_once():
    storage = world_of(8)
    contents = load(storage, opened(storage))
    asked = []

    class Asked(Buffers):
        def ready(self, name):
            return None

        def buffer(self, name):
            asked.append(name)
            return super().ready(name)

    contents.read_into(Asked({name: flat(array.copy()) for name, array in WEIGHTS.items()}))
    assert sorted(asked) == sorted(WEIGHTS)


def test_a_peek_puts_pieces_together():
    storage = world_of(4)
    contents = load(storage, opened(storage))
    for name in ("embedding", "step", "none", "acc", "rng"):
        (wanted,) = [one.array for one in held_by(0) if one.name == name]
        assert contents.peek(name).tobytes() == wanted.tobytes()


def test_altered_byte_in_any_rank_file_is_found():
    """Verification finds it in every file; loading a rank finds it in every file that the rank reads."""
    for key in [key for key in world_of(3).files if key.endswith(".safetensors")]:
        storage = world_of(3)
        data = bytearray(storage.files[key])
        data[-1] ^= 1
        storage.files[key] = bytes(data)
        own = "/rank-" not in key or "weights" in key or "optimizer" in key or NAME.rank_folder(1) in key
        with pytest.raises(CorruptCheckpointError, match=key):
            verify(storage, opened(storage))
        if own:
            with pytest.raises(CorruptCheckpointError, match=key):
                _ = load(storage, opened(storage), 1).tensors
        else:
            same(load(storage, opened(storage), 1).tensors, held_by(1))


def test_names_are_proven_in_all_their_files():
    storage = world_of(3)
    last = next(key for key in storage.files if key.startswith(NAME.rank_folder(2)) and "optimizer" in key)
    storage.files[last] = storage.files[last][:-1] + b"?"
    contents = load(storage, opened(storage), 0)
    contents.prove(["embedding"])
    with pytest.raises(CorruptCheckpointError, match=last):
        contents.prove(["dense.m"])


def test_every_file_is_safetensors_and_names_its_rank():
    storage = world_of(2)
    for key, data in storage.files.items():
        if key.endswith(".safetensors"):
            load_safetensors(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            assert header["__metadata__"]["rank"] in ("0/2", "1/2")


def test_size_check_lists_folders_not_single_files():
    storage = Counted(world_of(40))
    checkpoint = opened(storage)
    storage.reset()
    check_sizes(storage, checkpoint)
    assert len(storage.calls) == 2  # the checkpoint's folder, and the shared files


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_missing_or_resized_file_is_named(change):
    for key in [key for key in world_of(2).files if key.endswith(".safetensors")]:
        storage = world_of(2)
        if change == "gone":
            del storage.files[key]
        else:
            storage.files[key] += b"x"
        with pytest.raises(CorruptCheckpointError, match=key):
            load(storage, opened(storage), 0)


def test_ranks_of_two_saves_make_no_checkpoint():
    storage = world_of(3, save_numbers=[4, 4, 3])
    with pytest.raises(
        CorruptCheckpointError, match=r"rank-00002\.json belongs to save 3, .*rank-00000\.json to save 4"
    ):
        opened(storage)


@pytest.mark.parametrize("field", ["token", "rank", "checkpoint"])
def test_foreign_rank_file_is_named(field):
    """A rank file of another attempt, rank or checkpoint is named."""
    storage = world_of(6)
    key = NAME.rank_key(4)
    fields = json.loads(storage.files[key])
    fields[field] = {"token": "0" * 32, "rank": 3, "checkpoint": "a000001-c0000000009-m0000"}[field]
    documents = documents_of(storage)
    documents[4] = RankManifest.model_validate(fields)
    commit(storage, documents)
    if field == "rank":
        storage = DictStorage({**storage.files, key: storage.files[NAME.rank_key(3)]})
    with pytest.raises(CorruptCheckpointError, match=r"rank-0000[34]\.json"):
        opened(storage)


def test_shard_in_another_ranks_folder_is_refused():
    storage = world_of(3)
    documents = documents_of(storage)
    key = next(one.key for one in documents[2].shards if one.key.startswith(NAME.rank_folder(2)))
    theirs = documents[1].shards[0].model_copy(update={"key": key})
    documents[1] = documents[1].model_copy(update={"shards": [theirs, *documents[1].shards[1:]]})
    commit(storage, documents)
    with pytest.raises(CorruptCheckpointError, match=r"rank-00001\.json names a shard outside of its folder"):
        opened(storage)


def altered(documents, name, change):
    """``documents`` with what each says of the leaf ``name`` run through ``change(rank, entry)``; None drops it."""
    found = []
    for document in documents:
        shards = []
        for shard in document.shards:
            tensors = [
                one if one.name != name else change(document.rank, one.model_dump(mode="json")) for one in shard.tensors
            ]
            fields = shard.model_dump(mode="json")
            fields["tensors"] = [
                one if isinstance(one, dict) else one.model_dump(mode="json") for one in tensors if one is not None
            ]
            shards.append(fields)
        found.append(RankManifest.model_validate({**document.model_dump(mode="json"), "shards": shards}))
    return found


def dropped(ranks):
    return lambda rank, entry: None if rank in ranks else entry


def moved(rank_moved, by):
    def change(rank, entry):
        if rank == rank_moved:
            entry["part"]["offsets"][0] += by
        return entry

    return change


def with_field(at, field, value):
    def change(rank, entry):
        return {**entry, field: value} if rank == at else entry

    return change


def larger_wholes(rank, entry):
    return {**entry, "part": {**entry["part"], "global_shape": [101 + rank, 16]}}


# Weights and moments of 7 kB each: the embedding lies in ranks 0 and 1, its moments in 2 and 3.
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("embedding", dropped([1]), "byte .* is missing"),
        ("embedding", dropped([0]), "byte 0 is missing"),
        ("embedding", moved(1, -1), "byte .* is stored twice"),
        ("embedding", moved(0, 1), "byte 0 is missing"),
        ("embedding", with_field(1, "dtype", "I32"), "I32"),
        ("embedding", larger_wholes, "102"),
        ("embedding", lambda rank, entry: {**entry, "part": None}, "which is|more than once"),
    ],
)  # fmt: skip
def test_incomplete_or_overlapping_pieces_are_refused_before_reading(name, change, words):
    storage = world_of(4)
    commit(storage, altered(documents_of(storage), name, change))
    counted = Counted(storage)
    checkpoint = opened(counted)
    counted.reset()
    for read in (load, verify):
        with pytest.raises(CorruptCheckpointError, match=words) as caught:
            read(counted, checkpoint)
        assert name in str(caught.value)
        assert ".safetensors" in str(caught.value)
    assert reads(counted) == []


def test_whole_leaf_stored_by_two_ranks_is_refused():
    one = documents_of(write_ranks([[leaf("w", np.ones(8, np.float32))]]))
    with pytest.raises(CorruptCheckpointError, match="'w', which is stored more than once"):
        StoredLeaves(one * 2)


def test_leaf_both_per_rank_and_shared_is_refused():
    """A leaf that is one rank's own, but shared by others, is refused."""
    storage = write_ranks([[leaf("w", np.ones(8, np.float32))]] * 2)
    documents = documents_of(storage)
    other = write_ranks([[leaf("w", np.ones(8, np.float32), "per_rank")]] * 2)
    with pytest.raises(CorruptCheckpointError, match=r"'w', which belongs to rank 1 alone there, but is shared"):
        StoredLeaves([documents[0], *altered(documents_of(other)[1:], "w", lambda rank, one: one), documents[1]])


def test_sharded_leaf_with_missing_part_is_refused():
    boxes = [Box((6,), (0,)), Box((6,), (2,)), Box((6,), (4,))]
    storage = write_ranks([[leaf("z", np.ones(2, np.float32), box)] for box in boxes])
    documents = documents_of(storage)
    StoredLeaves(documents)
    for some in (documents[:2], [*documents, documents[0]]):
        with pytest.raises(CorruptCheckpointError, match="whose parts have"):
            StoredLeaves(some)


def test_roles_must_agree_as_well():
    parts = [Box((4,), (0,)), Box((4,), (2,))]
    ranks = [
        [leaf("z", np.ones(2, np.float32), box, role=role)]
        for box, role in zip(parts, ("weights", "optimizer"), strict=True)
    ]
    with pytest.raises(CorruptCheckpointError, match="sharded optimizer of F32"):
        StoredLeaves(documents_of(write_ranks(ranks)))


def test_entry_has_the_part_of_its_document():
    storage = world_of(4)
    entries = [t for d in documents_of(storage) for s in d.shards for t in s.tensors if t.name == "embedding"]
    assert entries[0].part == Part(global_shape=[101, 16], offsets=[0, 0])
    assert sum(one.shape[0] for one in entries) == 101
