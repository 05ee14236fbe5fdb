"""What many ranks stored comes back whole: replicated leaves from all of them, each rank's own from its own files."""

import numpy as np
import pytest
from support.refusals import unrefused
from support.runs.dict_storage import Counted, DictStorage
from support.runs.rank_files import NAME, commit, documents_of, leaf, opened, write_ranks

from ckptkit.checkpoint.read import load, verify
from ckptkit.checkpoint.shard_bytes import StoredLeaves
from ckptkit.core.contents import Buffers
from ckptkit.core.placement import Box
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import RankManifest

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


def bits_of(tensors):
    return {name: (array.shape, array.dtype, array.tobytes()) for name, array in tensors.items()}


def assert_holds(contents, rank, ranks):
    assert bits_of(contents.tensors) == bits_of({one.name: one.array for one in held_by(rank)})
    assert (contents.rank, contents.world_size, contents.state) == (rank, ranks, {"rank": rank})


@pytest.mark.parametrize(("shard_bytes", "window_bytes"), [(300, 7), (300, 1 << 20), (1 << 30, 100)])
def test_every_rank_gets_back_what_it_held(shard_bytes, window_bytes, monkeypatch):
    monkeypatch.setattr(DictStorage, "window_bytes", window_bytes)
    for ranks in (1, 2, 3, 16):
        storage = world_of(ranks, shard_bytes=shard_bytes)
        verify(storage, opened(storage))
        for rank in range(ranks):
            contents = load(storage, opened(storage), rank)
            assert_holds(contents, rank, ranks)
            for held in held_by(rank):
                assert contents.peek(held.name).tobytes() == held.array.tobytes(), held.name
            assert contents.entries["embedding"].placement == "replicated"
            assert contents.entries["embedding"].shape == (101, 16)
            assert contents.entries["acc"].placement == "per_rank"
            other = contents.of_rank(ranks - 1 - rank)
            assert_holds(other, ranks - 1 - rank, ranks)
            assert other.of_rank(rank).state == {"rank": rank}


def reads(storage):
    return [call.keys[0] for call in storage.calls if call.operation == "read_into"]


def test_memory_is_asked_for_once_whatever_the_pieces():
    asked = []

    class Asked(Buffers):
        def ready(self, name):
            return None

        def buffer(self, name):
            asked.append(name)
            return super().ready(name)

    memory = {name: np.full_like(array, 9) for name, array in WEIGHTS.items()}
    load(storage := world_of(8), opened(storage), 2).read_into(Asked({n: flat(array) for n, array in memory.items()}))
    assert bits_of(memory) == bits_of(WEIGHTS)
    assert sorted(asked) == sorted(WEIGHTS)


def test_only_needed_files_are_read_and_once():
    told = []
    storage = Counted(world_of(4))
    contents = load(storage, opened(storage), 2, report=told.append)
    storage.reset()
    contents.read_into(Buffers({"acc": flat(np.empty(20, np.float32))}))
    assert reads(storage) == [f"{NAME.rank_folder(2)}/accumulators-002.safetensors"]
    storage.reset()
    contents.read_into(Buffers({"embedding": flat(np.empty((101, 16), np.float32))}))
    pieces = StoredLeaves(opened(storage).ranks).of_rank(2)["embedding"].pieces
    assert sorted(reads(storage)) == sorted(piece.shard.key for piece in pieces)
    assert len(pieces) > 1
    told.clear()
    whole = load(storage, opened(storage), 2, report=told.append)
    assert whole.tensors
    assert sum(told) == opened(storage).size_bytes_for(2)
    assert sum(opened(storage).size_bytes_for(rank) for rank in range(4)) > opened(storage).size_bytes


def test_changed_file_of_any_rank_is_named():
    """Verification finds it in every file; loading a rank finds it in every file that the rank reads."""
    for key in [key for key in world_of(3).files if key.endswith(".safetensors")]:
        storage = world_of(3)
        data = storage.files.pop(key)
        for changed in (None, data + b"x"):
            storage.files |= {} if changed is None else {key: changed}
            with pytest.raises(CorruptCheckpointError, match=key):
                load(storage, opened(storage), 0)
        storage.files[key] = data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(CorruptCheckpointError, match=key):
            verify(storage, opened(storage))
        if "/rank-" not in key or "weights" in key or "optimizer" in key or NAME.rank_folder(1) in key:
            with pytest.raises(CorruptCheckpointError, match=key):
                _ = load(storage, opened(storage), 1).tensors
        else:
            assert_holds(load(storage, opened(storage), 1), 1, 3)


def test_documents_that_do_not_belong_together_are_refused():
    """Those of two saves, of another attempt, rank or checkpoint, and one with a shard of another rank's folder."""
    rows = [(world_of(3, save_numbers=[4, 4, 3]), r"rank-00002\.json belongs to save 3, .*rank-00000\.json to save 4")]
    for field, value in {"token": "0" * 32, "checkpoint": "a000001-c0000000009-m0000"}.items():
        storage = world_of(6)
        documents = documents_of(storage)
        documents[4] = documents[4].model_copy(update={field: value})
        commit(storage, documents)
        rows.append((storage, r"rank-00004\.json"))
    storage = world_of(6)
    storage.files[NAME.rank_key(4)] = storage.files[NAME.rank_key(3)]
    rows.append((storage, r"rank-00004\.json"))
    storage = world_of(3)
    documents = documents_of(storage)
    key = next(one.key for one in documents[2].shards if one.key.startswith(NAME.rank_folder(2)))
    theirs = documents[1].shards[0].model_copy(update={"key": key})
    documents[1] = documents[1].model_copy(update={"shards": [theirs, *documents[1].shards[1:]]})
    commit(storage, documents)
    rows.append((storage, r"rank-00001\.json names a shard outside of its folder"))
    assert unrefused(CorruptCheckpointError, opened, rows) == {}


def altered(documents, name, change):
    """``documents`` with what each says of the leaf ``name`` run through ``change(rank, entry)``; None drops it."""
    for document in documents:
        fields = document.model_dump(mode="json")
        for shard in fields["shards"]:
            entries = [change(document.rank, one) if one["name"] == name else one for one in shard["tensors"]]
            shard["tensors"] = [one for one in entries if one is not None]
        yield RankManifest.model_validate(fields)


def dropped(rank_dropped):
    return lambda rank, entry: None if rank == rank_dropped else entry


def moved(rank_moved, by):
    def change(rank, entry):
        entry["part"]["offsets"][0] += by * (rank == rank_moved)
        return entry

    return change


def test_incomplete_or_overlapping_pieces_are_refused_before_reading():
    """Weights and moments of 7 kB each: the embedding lies in ranks 0 and 1, its moments in 2 and 3."""
    documents = documents_of(storage := world_of(4))
    rows = [
        ([*altered(documents, "embedding", change)], f"embedding.*{words}")
        for change, words in [
            (dropped(1), "byte .* is missing"),
            (dropped(0), "byte 0 is missing"),
            (moved(1, -1), "byte .* is stored twice"),
            (moved(0, 1), "byte 0 is missing"),
            (lambda rank, entry: {**entry, "dtype": "I32"} if rank == 1 else entry, "I32"),
            (lambda rank, entry: {**entry, "part": {**entry["part"], "global_shape": [101 + rank, 16]}}, "102"),
            (lambda rank, entry: {**entry, "part": None}, "which is|more than once"),
        ]
    ]
    assert unrefused(CorruptCheckpointError, StoredLeaves, rows) == {}
    commit(storage, rows[0][0])
    counted = Counted(storage)
    for read in (load, verify):
        with pytest.raises(CorruptCheckpointError, match="embedding"):
            read(counted, opened(counted))
    assert reads(counted) == []


def test_leaves_that_contradict_each_other_are_refused():
    whole, own = (write_ranks([[leaf("w", np.ones(8, np.float32), how)]] * 2) for how in ("replicated", "per_rank"))
    whole, own = documents_of(whole), documents_of(own)
    alone = documents_of(write_ranks([[leaf("w", np.ones(8, np.float32))]]))
    halves = [
        leaf("z", np.ones(2, np.float32), Box((4,), (at,)), role=role)
        for at, role in ((0, "weights"), (2, "optimizer"))
    ]
    parts = [[leaf("z", np.ones(2, np.float32), Box((6,), (at,)))] for at in (0, 2, 4)]
    parts = documents_of(write_ranks(parts))
    StoredLeaves(parts)
    rows = [
        (alone * 2, "'w', which is stored more than once"),
        ([whole[0], own[1], whole[1]], "'w', which belongs to rank 1 alone there, but is shared"),
        (parts[:2], "whose parts have"),
        ([*parts, parts[0]], "whose parts have"),
        (documents_of(write_ranks([[one] for one in halves])), "sharded optimizer of F32"),
    ]
    assert unrefused(CorruptCheckpointError, StoredLeaves, rows) == {}
