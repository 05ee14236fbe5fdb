"""What `ckptkit.tools.diff` says of two checkpoints, compared with what NumPy says of the same arrays."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.dict_storage import DictStorage
from support.runs.rank_files import NAME, leaf, opened, write_ranks
from support.runs.scenario import AT_6, corrupt, history, name_at

from ckptkit.checkpoint import shard_bytes
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.core.placement import Box
from ckptkit.core.tensors import bytes_of, leaf_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.format.documents import ShardEntry, digest_of
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools import diff
from ckptkit.tools.diff import Divergence, Side, compare, in_order_of_size, state_differences

AT_4 = name_at(1, 4)


def side(storage, name=None, told=None):
    report = (told if told is not None else []).append
    if name is None:
        return Side(storage, opened(storage), report)
    parsed = CheckpointName.parse(name)
    return Side(storage, open_checkpoint(storage, parsed, Index(storage).document(parsed.attempt)), report)


def compared(a, b, names=(None, None), told=None):
    planned = []
    found = compare(side(a, names[0], told), side(b, names[1], told), planned.append)
    if told is not None:
        assert sum(told) == planned[0]
    return found


def by_name(found):
    return {one.name: one for one in found.leaves}


def reads(storage):
    return [call.keys[0] for call in storage.calls if call.operation == "read_into"]


@pytest.fixture
def root(tmp_path):
    history(tmp_path / "run")
    return tmp_path / "run"


def states_at(*batches):
    """The arrays of a run that was never saved."""
    run, found = NumpyRun(accumulation_steps=4, size=5), []
    for at in batches:
        for _ in run.train_until(at):
            pass
        found.append({"weights": run.weights.copy(), "moments": run.moments.copy()})
    return found


def trained(root, run, *batches):
    """The names of checkpoints after so many batches."""
    with CheckpointManager(root, keep=KeepLatest(5)) as manager:
        manager.restore(run)
        names = []
        for at in batches:
            for _ in run.train_until(at):
                pass
            names.append(manager.save(run).result())
    return names


def test_two_checkpoints_of_a_run(root):
    storage, told = FaultyStorage(LocalStorage(root)), []
    found = compared(storage, storage, (AT_4, AT_6), told)
    assert found.progress == {"batch": (4, 6), "micro_step": (0, 2), "batches_delivered": (4, 6)}
    assert {key: (one.equal, one.differing, one.only_in_a, one.only_in_b) for key, one in found.roles.items()} == {
        "weights": (2, 0, 0, 0),
        "optimizer": (1, 0, 0, 0),
        "accumulators": (0, 0, 0, 1),
    }
    assert [(one.name, one.kind) for one in found.leaves] == [("accumulators", "only in b")]
    assert {one.path for one in found.state} == {"rng/state/state", "rng/uinteger"}
    assert found.suspicion is None  # no update lies between them
    assert reads(storage) == []  # the digests say it all
    same = compared(LocalStorage(root), LocalStorage(root), (AT_6, AT_6))
    assert (same.is_empty, same.suspicion) == (True, None)


def test_by_how_much_is_what_numpy_says(tmp_path):
    names = trained(tmp_path, NumpyRun(accumulation_steps=4, size=5), 4, 12)
    storage = FaultyStorage(LocalStorage(tmp_path))
    found = compared(storage, storage, names, [])
    a, b = states_at(4, 12)
    assert set(by_name(found)) == {"weights", "moments"}
    assert by_name(found)["moments"].role == "optimizer"
    for name, leaf_found in by_name(found).items():
        before, after = a[name].astype(np.float64), b[name].astype(np.float64)
        numbers, distance = leaf_found.divergence, np.abs(before - after)
        assert numbers.differing == np.count_nonzero(a[name] != b[name]) == 5
        assert numbers.max_abs == distance.max()
        assert numbers.max_relative == (distance / np.maximum(np.abs(before), np.abs(after))).max()
    # Each file of each side once, and the frozen one not at all.
    files = ["optimizer-000.safetensors", "weights-000.safetensors"]
    assert sorted(key.rpartition("/")[2] for key in reads(storage)) == sorted(files * 2)
    assert not found.is_empty


class Stale(NumpyRun):
    """Trains, and saves what it began with; without an optimizer's state, if it is bare."""

    def __init__(self, *stale, bare=False, **options):
        super().__init__(**options)
        self._stale = {name: getattr(self, name).copy() for name in stale}
        self._bare = bare

    def capture(self):
        captured = super().capture()
        leaves = [
            leaf_of(one.name, self._stale[one.name], role=one.role, lifetime=one.lifetime, placement="replicated")
            if one.name in self._stale
            else one
            for one in captured.leaves
            if not self._bare or one.spec.role != "optimizer"
        ]
        return type(captured)(captured.progress, tuple(leaves), captured.state)


def test_updates_that_changed_no_weight_are_suspicious(tmp_path):
    for number, (stale, bare, words) in enumerate(
        (
            (("weights", "moments"), False, "and so is all of the optimizer's state"),
            (("weights",), False, "of the optimizer's leaves, 1 of 1 differ"),
            (("weights",), True, "are equal to the bit. Unless"),
            (("moments",), False, None),
        )
    ):
        storage = LocalStorage(tmp_path / str(number))
        names = trained(tmp_path / str(number), Stale(*stale, bare=bare, accumulation_steps=2), 4, 8, 9)
        suspicion = compared(storage, storage, names[:2]).suspicion
        if words is None:
            assert suspicion is None
        else:
            assert suspicion.startswith("2 updates lie between the two, and all 2 weights are equal")
            assert words in suspicion
        assert compared(storage, storage, names[1:]).suspicion is None, "no update lies between them"


def test_damage_is_an_error_and_no_difference(tmp_path):
    names = trained(tmp_path, NumpyRun(accumulation_steps=4, size=5), 4, 12)
    for name in names:
        corrupt(tmp_path, name)
        with pytest.raises(CorruptCheckpointError, match=f"{name}/rank-00000/weights-000"):
            compared(LocalStorage(tmp_path), LocalStorage(tmp_path), names)
        corrupt(tmp_path, name)  # flips it back
    corrupt(tmp_path, names[0], "rank-00000/weights-000.safetensors", "cut")
    with pytest.raises(CorruptCheckpointError, match="bytes, expected"):
        compared(LocalStorage(tmp_path), LocalStorage(tmp_path), names)


def test_checkpoint_removed_during_diff_is_not_corrupt(tmp_path):
    history(tmp_path / "a")
    trained(tmp_path / "b", NumpyRun(seed=8, accumulation_steps=4, size=5), 4)
    folder = tmp_path / "b/checkpoints" / AT_4

    def remove():
        (folder / "COMMIT").unlink()
        (folder / "rank-00000/weights-000.safetensors").unlink()

    storage = FaultyStorage(LocalStorage(tmp_path / "b"), [Fault(remove, operations={"read_into"})])
    with pytest.raises(CheckpointNotFoundError, match="removed while"):
        compared(LocalStorage(tmp_path / "a"), storage, (AT_4, AT_4))


WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
CHANGED = WHOLE.copy()
CHANGED[2, 3] += 1


def cut(whole, rows, columns):
    """A grid of parts, one for each rank."""
    found = []
    for row in np.array_split(np.arange(4), rows):
        for column in np.array_split(np.arange(6), columns):
            part = np.ascontiguousarray(whole[np.ix_(row, column)])
            found.append([leaf("z", part, Box((4, 6), (int(row[0]), int(column[0]))))])
    return write_ranks(found, block_bytes=32)


def shared(whole, ranks):
    return write_ranks([[leaf("z", whole)]] * ranks)


CUTS = {
    "rows": lambda whole: cut(whole, 2, 1),
    "columns": lambda whole: cut(whole, 1, 3),
    "grid": lambda whole: cut(whole, 2, 2),
    "replicated": lambda whole: shared(whole, 3),
    "one rank": lambda whole: shared(whole, 1),
    "its own": lambda whole: write_ranks([[leaf("z", whole, "per_rank")]]),
}


def test_diff_assembles_parts_of_any_cut(monkeypatch):
    monkeypatch.setattr(diff, "WINDOW_BYTES", 20)
    monkeypatch.setattr(shard_bytes, "_WINDOW_BYTES", 24)
    for a, b in itertools.product(CUTS, CUTS):
        same = compared(CUTS[a](WHOLE), CUTS[b](WHOLE))
        assert same.leaves == (), (a, b)
        assert same.is_empty == (same.ranks[0] == same.ranks[1]), (a, b)
        (found,) = compared(CUTS[a](WHOLE), CUTS[b](CHANGED)).leaves
        assert (found.name, found.kind) == ("z", "value")
        numbers = found.divergence
        assert (numbers.elements, numbers.differing, numbers.first) == (24, 1, (2, 3)), (a, b)
        assert (numbers.max_abs, numbers.max_relative) == (1.0, 1 / 16), (a, b)


def test_diff_result_ignores_window_and_leaf_order(monkeypatch):
    """The files are proven by their digests each time."""
    monkeypatch.setattr(diff, "WINDOW_BYTES", 12)
    leaves = [leaf(f"z{n}", np.arange(7, dtype=np.float32) + n, "per_rank") for n in range(4)]
    changed = [leaf(f"z{n}", np.arange(7, dtype=np.float32) + n + (n == 2), "per_rank") for n in range(4)]
    key = f"{NAME.rank_folder(0)}/weights-000.safetensors"
    for window_bytes, order in ((1, 1), (7, -1), (64, -1), (1 << 20, 1)):
        monkeypatch.setattr(shard_bytes, "_WINDOW_BYTES", window_bytes)
        a, b = write_ranks([leaves]), write_ranks([changed[::order]])
        (found,) = compared(a, b).leaves
        assert (found.name, found.divergence.differing) == ("z2", 7), (window_bytes, order)
        for storage in (a, b):
            for at in (0, len(storage.files[key]) // 2, -1):
                sound, data = storage.files[key], bytearray(storage.files[key])
                data[at] ^= 1
                storage.files[key] = bytes(data)
                with pytest.raises(CorruptCheckpointError, match="weights-000"):
                    compared(a, b)
                storage.files[key] = sound
    # More files than are held open, and each leaf in another one on the other side.
    names = [f"z{n}" for n in range(6)]
    a = write_ranks([[leaf(name, np.zeros(5, np.float32), "per_rank") for name in names]], shard_bytes=20)
    b = write_ranks([[leaf(name, np.ones(5, np.float32), "per_rank") for name in names[::-1]]], shard_bytes=40)
    assert {one.name: one.divergence.max_abs for one in compared(a, b).leaves} == dict.fromkeys(names, 1.0)


def test_looks_back_give_the_right_bytes(monkeypatch):
    for spans in ([(64, 10), (5, 3), (40, 40)], [(99, 1), (0, 100)], [(50, 14), (50, 14)]):
        storage, (shard,), files = proven_files(monkeypatch, 1)
        for start, count in spans:
            assert bytes_at(files, shard, start, count) == storage.files[shard.key][start : start + count], spans
        files.end()
    storage, shards, files = proven_files(monkeypatch, 4)
    for shard in (*shards, *shards):  # closed ones can be read again
        assert bytes_at(files, shard, 30, 30) == storage.files[shard.key][30:60]
    files.end()


def proven_files(monkeypatch, count):
    """Reads files of 100 bytes in windows of 16."""
    monkeypatch.setattr(shard_bytes, "_WINDOW_BYTES", 16)
    storage, shards = DictStorage(), []
    for number in range(count):
        data = np.random.default_rng(number).bytes(100)
        key = f"{NAME.rank_folder(number)}/weights-000.safetensors"
        storage.files[key] = data
        shards.append(
            ShardEntry(key=key, size_bytes=100, digest=digest_of(data), role="weights", tensors=[], blocks=None)
        )
    return storage, shards, shard_bytes.ProvenFiles(storage, NAME, lambda size_bytes: None)


def bytes_at(files, shard, start, count):
    into = bytearray(count)
    files.read(shard, start, memoryview(into))
    return bytes(into)


def test_bytes_that_nobody_read_are_proven(monkeypatch):
    for count in (1, 4):  # still open, and made way for others
        storage, shards, files = proven_files(monkeypatch, count)
        key = shards[0].key
        storage.files[key] = storage.files[key][:-1] + b"?"

        def read_some_of_each(shards=shards, files=files):
            for shard in shards:
                bytes_at(files, shard, 0, 3)
            files.end()

        with pytest.raises(CorruptCheckpointError, match=key):
            read_some_of_each()


def test_diff_reports_form_changes_and_sorts_rows():
    """Leaves of different form are not compared by value, and those of each rank by rank."""
    ones = [leaf(name, np.ones(3)) for name in ("little", "part", "whole")]
    changed = {"little": [1.5, 1.5, 1.5], "part": [1.0, 2.0, 1.0], "whole": [2.0, 2.0, 2.0]}
    a = write_ranks([[leaf("x", np.zeros(3, np.float32)), *ones, leaf("a", np.ones(1))]])
    b = write_ranks([[leaf("x", np.zeros(4, np.float32)), *(leaf(name, np.array(v)) for name, v in changed.items())]])
    found = compared(a, b)
    kinds = {one.name: (one.kind, one.form_a, one.form_b) for one in found.leaves}
    assert kinds["x"] == ("form", "F32 [3]", "F32 [4]")
    assert kinds["a"] == ("only in a", "F64 [1]", None)
    assert [one.name for one in in_order_of_size(found.leaves)] == ["x", "a", "whole", "part", "little"]
    assert (found.roles["weights"].differing, found.roles["weights"].equal) == (4, 0)
    a, b = (
        write_ranks([[leaf("acc", np.full(3, rank + (rank == changed)), "per_rank")] for rank in range(3)])
        for changed in (None, 1)
    )
    assert [(one.name, one.rank) for one in compared(a, b).leaves] == [("acc", 1)]


def bits(*values):
    """Of bfloat16."""
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


INF, NAN = math.inf, math.nan


NUMBERS_OF = (
    ("F32", np.float32([1, 2]), np.float32([1, np.nextafter(np.float32(2), np.float32(3))]), (1, 2.0**-22, 1, 0)),
    ("F32", np.float32([0.0]), np.float32([-0.0]), (1, 0.0, 1, 0)),
    ("F64", np.array([1e308]), np.array([-1e308]), (1, INF, None, 0)),
    ("F64", np.array([-5e-324]), np.array([5e-324]), (1, 1e-323, 3, 0)),
    ("F16", np.float16([1, 65504]), np.float16([1, INF]), (1, None, None, 1)),
    ("F32", np.float32([NAN, 1, NAN]), np.float32([NAN, NAN, 3]), (2, None, None, 2)),
    ("BF16", bits(1.0, 3.0), bits(1.0078125, 3.0), (1, 0.0078125, 1, 0)),
    ("BF16", bits(1.0, NAN), bits(2.0, NAN), (1, 1.0, 128, 0)),
    ("I64", np.array([-(2**63), 5]), np.array([2**63 - 1, 5]), (1, 2.0**64, None, 0)),
    ("U8", np.uint8([0, 7]), np.uint8([255, 7]), (1, 255.0, None, 0)),
    ("BOOL", np.array([True, False]), np.array([False, False]), (1, 1.0, None, 0)),
    ("C64", np.complex64([1 + 2j, 3]), np.complex64([1 + 4j, 3]), (1, 2.0, 1 << 23, 0)),
)


def divergence(dtype, a, b):
    found = Divergence()
    found.add(dtype, a, b, lambda at: (at,))
    return found


def test_numbers_of_every_kind():
    for dtype, a, b, (differing, max_abs, ulps, not_finite) in NUMBERS_OF:
        found = divergence(dtype, a, b)
        assert (found.differing, found.max_abs, found.not_finite) == (differing, max_abs, not_finite), (dtype, a)
        if ulps is not None or dtype[0] != "F":
            assert found.max_ulps == ulps, (dtype, a)
    found = divergence("BF16", bits(NAN, 1, NAN), bits(NAN, INF, 3))
    assert (found.nans_a, found.nans_b) == (2, 1)


def test_pieces_count_as_much_as_the_whole():
    for scalar, split, order in itertools.product((np.float32, np.int16), range(1, 6), (1, -1)):
        dtype = "F32" if scalar is np.float32 else "I16"
        a, b = np.array([1, 9, 5, 4, 4, 2], scalar), np.array([1, 3, 7, 4, 5, 9], scalar)
        if dtype == "F32":
            a[[0, 4]] = NAN
            b[5] = NAN
        a, b = a[::order], b[::order]
        pieces = divergence(dtype, a[:split], b[:split])
        pieces.add(dtype, a[split:], b[split:], lambda at, split=split: (at + split,))
        assert pieces == divergence(dtype, a, b), (dtype, split, order)


LARGEST = np.finfo(np.float32).max
NUMBERS = st.floats(width=32, min_value=float(-LARGEST), max_value=float(np.nextafter(LARGEST, -LARGEST)))


@settings(max_examples=60)
@given(st.lists(NUMBERS, min_size=2, max_size=2))
def test_ulps_count_steps_between_floats(pair):
    low, high = sorted(np.float32(pair))
    up = np.nextafter(low, np.float32(INF))
    step = divergence("F32", np.float32([low]), np.float32([up]))
    # From a negative to a positive zero is a step of its own.
    assert step.max_ulps in ((1, 2) if low == 0 or up == 0 else (1,))
    there, back = (divergence("F32", np.float32([a]), np.float32([b])) for a, b in ((low, high), (high, low)))
    assert there.max_ulps == back.max_ulps


def test_states_are_compared_place_by_place():
    tensor = {"$array": "rng/t"}
    a = {
        "rng": {"python": {"$tuple": [3, [1, 2, 3], None]}, "x": {"$int": "0x1"}, "t": tensor},
        **{"n": 1, "best": {"$ordered": {"loss": 1, "same": 1}}, "long": [1, 2, 3], "pair": {"$tuple": [1, 2]}},
    }
    b = {
        "rng": {"python": {"$tuple": [3, [1, 5, 6], 0.5]}, "x": {"$float": "00"}, "t": tensor},
        **{"n": True, "best": {"$ordered": {"loss": 2, "same": 1}}, "long": [1, 2], "pair": {"$tuple": [1]}},
        "more": "x" * 100,
    }
    assert {place.path: (place.a, place.b) for place in state_differences(0, a, b)} == {
        "rng/python/1": ("2 of 3 elements differ, the first at 1: 2", "5"),
        "rng/python/2": ("null", "0.5"),
        "rng/x": ('{"$int": "0x1"}', '{"$float": "00"}'),
        "n": ("1", "true"),
        "best/loss": ("1", "2"),
        "long": ("3 elements", "2 elements"),
        "pair": ("2 elements", "1 elements"),
        "more": ("absent", '"' + "x" * 56 + "..."),
    }
    assert list(state_differences(0, a, a)) == []


def test_diff_memory_is_bounded_by_windows(monkeypatch):
    monkeypatch.setattr(diff, "WINDOW_BYTES", 64)
    monkeypatch.setattr(shard_bytes, "_WINDOW_BYTES", 128)
    asked = []

    class Measured(DictStorage):
        def read_into(self, key, buffers, offset_bytes=0):
            asked.append(sum(map(len, buffers)))
            return super().read_into(key, buffers, offset_bytes)

    a, b = (Measured(write_ranks([[leaf("w", np.arange(1000) + n)]]).files) for n in range(2))
    (one,) = compared(a, b).leaves
    assert one.divergence.differing == 1000
    assert max(asked) <= 128
    assert sum(asked) == 2 * len(a.files[f"{NAME.rank_folder(0)}/weights-000.safetensors"])
    assert bytes_of(np.arange(3)).size == 24
