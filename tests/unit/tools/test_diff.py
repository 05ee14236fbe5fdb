"""What `ckptkit.tools.diff` says of two checkpoints, compared with what NumPy says of the same arrays."""

from __future__ import annotations

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


def test_by_how_much_is_what_numpy_says(tmp_path):
    run = NumpyRun(accumulation_steps=4, size=5)
    with CheckpointManager(tmp_path, keep=KeepLatest(5)) as manager:
        manager.restore(run)
        for at in (4, 12):
            for _ in run.train_until(at):
                pass
            manager.save(run).result()
    storage = FaultyStorage(LocalStorage(tmp_path))
    found = compared(storage, storage, (name_at(1, 4), name_at(1, 12)), [])
    a, b = states_at(4, 12)
    assert set(by_name(found)) == {"weights", "moments"}
    assert by_name(found)["moments"].role == "optimizer"
    for name, leaf_found in by_name(found).items():
        one, other = a[name].astype(np.float64), b[name].astype(np.float64)
        numbers = leaf_found.divergence
        assert numbers.differing == np.count_nonzero(a[name] != b[name]) == 5
        assert numbers.max_abs == np.abs(one - other).max()
        assert numbers.max_relative == (np.abs(one - other) / np.maximum(np.abs(one), np.abs(other))).max()
    assert sorted({key.rpartition("/")[2] for key in reads(storage)}) == [
        "optimizer-000.safetensors",
        "weights-000.safetensors",
    ]
    assert len(reads(storage)) == 4  # each file of each side once, and the frozen one not at all
    assert not found.is_empty


def test_a_checkpoint_is_equal_to_itself(root):
    found = compared(LocalStorage(root), LocalStorage(root), (AT_6, AT_6))
    assert found.is_empty
    assert found.suspicion is None


class Stale(NumpyRun):
    """Trains, and saves what it began with."""

    def __init__(self, *stale, **options):
        super().__init__(**options)
        self._stale = {name: getattr(self, name).copy() for name in stale}

    def capture(self):
        captured = super().capture()
        leaves = [
            leaf_of(one.name, self._stale[one.name], role=one.role, lifetime=one.lifetime, placement="replicated")
            if one.name in self._stale
            else one
            for one in captured.leaves
        ]
        return type(captured)(captured.progress, tuple(leaves), captured.state)


@pytest.mark.parametrize(
    ("stale", "words"),
    [
        (("weights", "moments"), "and so is all of the optimizer's state"),
        (("weights",), "of the optimizer's leaves, 1 of 1 differ"),
        (("moments",), None),
    ],
)
def test_updates_that_changed_no_weight_are_suspicious(tmp_path, stale, words):
    run = Stale(*stale, accumulation_steps=2)
    with CheckpointManager(tmp_path, keep=KeepLatest(5)) as manager:
        manager.restore(run)
        names = []
        for at in (4, 8, 9):
            for _ in run.train_until(at):
                pass
            names.append(manager.save(run).result())
    storage = LocalStorage(tmp_path)
    found = compared(storage, storage, (names[0], names[1]))
    if words is None:
        assert found.suspicion is None
    else:
        assert found.suspicion.startswith("2 updates lie between the two, and all 2 weights are equal")
        assert words in found.suspicion
    assert compared(storage, storage, (names[1], names[2])).suspicion is None


class Bare(Stale):
    """Has no optimizer whose state could be looked at."""

    def capture(self):
        captured = super().capture()
        leaves = tuple(one for one in captured.leaves if one.spec.role != "optimizer")
        return type(captured)(captured.progress, leaves, captured.state)


def test_stale_weights_are_suspicious_without_optimizer(tmp_path):
    run = Bare("weights", accumulation_steps=2)
    with CheckpointManager(tmp_path, keep=KeepLatest(5)) as manager:
        manager.restore(run)
        names = [manager.save(run).result() for _ in run.train_until(4)][1::2]
    storage = LocalStorage(tmp_path)
    suspicion = compared(storage, storage, names).suspicion
    assert suspicion.startswith("1 updates lie between the two, and all 2 weights are equal to the bit. Unless")


def test_damage_is_an_error_and_no_difference(tmp_path):
    run = NumpyRun(accumulation_steps=4, size=5)
    with CheckpointManager(tmp_path, keep=KeepLatest(5)) as manager:
        manager.restore(run)
        for at in (4, 12):
            for _ in run.train_until(at):
                pass
            manager.save(run).result()
    names = (name_at(1, 4), name_at(1, 12))
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
    run = NumpyRun(seed=8, accumulation_steps=4, size=5)
    with CheckpointManager(tmp_path / "b", keep=KeepLatest(5)) as manager:
        manager.restore(run)
        for _ in run.train_until(4):
            pass
        manager.save(run).result()
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


@pytest.mark.parametrize("a", CUTS)
@pytest.mark.parametrize("b", CUTS)
def test_diff_assembles_parts_of_any_cut(a, b, monkeypatch):
    monkeypatch.setattr(diff, "WINDOW_BYTES", 20)
    monkeypatch.setattr(shard_bytes, "_WINDOW_BYTES", 24)
    same = compared(CUTS[a](WHOLE), CUTS[b](WHOLE))
    assert same.leaves == ()
    assert same.is_empty == (same.ranks[0] == same.ranks[1])
    (one,) = compared(CUTS[a](WHOLE), CUTS[b](CHANGED)).leaves
    assert (one.name, one.kind) == ("z", "value")
    numbers = one.divergence
    assert (numbers.elements, numbers.differing, numbers.first) == (24, 1, (2, 3))
    assert (numbers.max_abs, numbers.max_relative) == (1.0, 1 / 16)


@pytest.mark.parametrize("window_bytes", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("order", [1, -1])
def test_diff_result_ignores_window_and_leaf_order(monkeypatch, window_bytes, order):
    """The files are proven by their digests each time."""
    monkeypatch.setattr(shard_bytes, "_WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(diff, "WINDOW_BYTES", 12)
    leaves = [leaf(f"z{n}", np.arange(7, dtype=np.float32) + n, "per_rank") for n in range(4)]
    changed = [leaf(f"z{n}", np.arange(7, dtype=np.float32) + n + (n == 2), "per_rank") for n in range(4)]
    a, b = write_ranks([leaves]), write_ranks([changed[::order]])
    (one,) = compared(a, b).leaves
    assert (one.name, one.divergence.differing) == ("z2", 7)
    key = f"{NAME.rank_folder(0)}/weights-000.safetensors"
    for storage in (a, b):
        for at in (0, len(storage.files[key]) // 2, -1):
            sound, data = storage.files[key], bytearray(storage.files[key])
            data[at] ^= 1
            storage.files[key] = bytes(data)
            with pytest.raises(CorruptCheckpointError, match="weights-000"):
                compared(a, b)
            storage.files[key] = sound


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


@pytest.mark.parametrize("spans", [[(64, 10), (5, 3), (40, 40)], [(99, 1), (0, 100)], [(50, 14), (50, 14)]])
def test_a_look_back_gives_the_right_bytes(monkeypatch, spans):
    storage, (shard,), files = proven_files(monkeypatch, 1)
    for start, count in spans:
        assert bytes_at(files, shard, start, count) == storage.files[shard.key][start : start + count]
    files.end()


def test_closed_files_can_be_read_again(monkeypatch):
    storage, shards, files = proven_files(monkeypatch, 4)
    for shard in (*shards, *shards):
        assert bytes_at(files, shard, 30, 30) == storage.files[shard.key][30:60]
    files.end()


@pytest.mark.parametrize("count", [1, 4], ids=["still open", "made way for others"])
def test_bytes_that_nobody_read_are_proven(monkeypatch, count):
    storage, shards, files = proven_files(monkeypatch, count)
    key = shards[0].key
    storage.files[key] = storage.files[key][:-1] + b"?"

    def read_some_of_each():
        for shard in shards:
            bytes_at(files, shard, 0, 3)
        files.end()

    with pytest.raises(CorruptCheckpointError, match=key):
        read_some_of_each()


def test_many_files_are_open_by_turns(monkeypatch):
    """More than are held open, and each leaf in another one on the other side."""
    names = [f"z{n}" for n in range(6)]
    arrays = {name: np.arange(5, dtype=np.float32) + n for n, name in enumerate(names)}
    a = write_ranks([[leaf(name, arrays[name], "per_rank") for name in names]], shard_bytes=20)
    b = write_ranks([[leaf(name, arrays[name] + 1, "per_rank") for name in names[::-1]]], shard_bytes=40)
    found = compared(a, b)
    assert sorted(one.name for one in found.leaves) == names
    assert {one.divergence.max_abs for one in found.leaves} == {1.0}


def test_diff_reports_form_changes_and_sorts_rows():
    """Leaves of different form are not compared by value."""
    ones = [leaf(name, np.ones(3)) for name in ("little", "part", "whole")]
    changed = {"little": [1.5, 1.5, 1.5], "part": [1.0, 2.0, 1.0], "whole": [2.0, 2.0, 2.0]}
    a = write_ranks([[leaf("x", np.zeros(3, np.float32)), *ones, leaf("a", np.ones(1))]])
    b = write_ranks([[leaf("x", np.zeros(4, np.float32)), *(leaf(name, np.array(v)) for name, v in changed.items())]])
    found = compared(a, b)
    kinds = {one.name: (one.kind, one.form_a, one.form_b) for one in found.leaves}
    assert kinds["x"] == ("form", "F32 [3]", "F32 [4]")
    assert kinds["a"] == ("only in a", "F64 [1]", None)
    assert [one.name for one in in_order_of_size(found.leaves)] == ["x", "a", "whole", "part", "little"]
    assert found.roles["weights"].differing == 4
    assert found.roles["weights"].equal == 0


def test_diff_compares_per_rank_leaves_by_rank():
    a, b = (
        write_ranks([[leaf("acc", np.full(3, rank + (rank == changed)), "per_rank")] for rank in range(3)])
        for changed in (None, 1)
    )
    (one,) = compared(a, b).leaves
    assert (one.name, one.rank) == ("acc", 1)


def bits(*values):
    """Of bfloat16."""
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("dtype", "a", "b", "expected"),
    [
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
    ],
)
def test_numbers_of_every_kind(dtype, a, b, expected):
    found = Divergence()
    found.add(dtype, a, b, lambda at: (at,))
    differing, max_abs, ulps, not_finite = expected
    assert (found.differing, found.max_abs, found.not_finite) == (differing, max_abs, not_finite)
    if ulps is not None or dtype[0] != "F":
        assert found.max_ulps == ulps


def test_nans_are_counted_on_each_side():
    for dtype, a, b in (
        ("F32", np.float32([NAN, 1, NAN]), np.float32([NAN, 2, 3])),
        ("BF16", bits(NAN, 1, NAN), bits(NAN, INF, 3)),
    ):
        found = Divergence()
        found.add(dtype, a, b, lambda at: (at,))
        assert (found.nans_a, found.nans_b) == (2, 1)


@pytest.mark.parametrize(("dtype", "scalar"), [("F32", np.float32), ("I16", np.int16)])
@pytest.mark.parametrize("split", range(1, 6))
@pytest.mark.parametrize("order", [1, -1])
def test_pieces_count_as_much_as_the_whole(dtype, scalar, split, order):
    one, other = np.array([1, 9, 5, 4, 4, 2], scalar), np.array([1, 3, 7, 4, 5, 9], scalar)
    if dtype == "F32":
        one[[0, 4]] = NAN
        other[5] = NAN
    one, other = one[::order], other[::order]
    whole, pieces = Divergence(), Divergence()
    whole.add(dtype, one, other, lambda at: (at,))
    pieces.add(dtype, one[:split], other[:split], lambda at: (at,))
    pieces.add(dtype, one[split:], other[split:], lambda at: (at + split,))
    assert pieces == whole


LARGEST = np.finfo(np.float32).max
NUMBERS = st.floats(width=32, min_value=float(-LARGEST), max_value=float(np.nextafter(LARGEST, -LARGEST)))


@settings(max_examples=60)
@given(st.lists(NUMBERS, min_size=2, max_size=2))
def test_ulps_count_steps_between_floats(pair):
    low, high = sorted(np.float32(pair))
    step = Divergence()
    up = np.nextafter(low, np.float32(INF))
    step.add("F32", np.float32([low]), np.float32([up]), lambda at: (at,))
    # From a negative to a positive zero is a step of its own.
    assert step.max_ulps in ((1, 2) if low == 0 or up == 0 else (1,))
    there, back = Divergence(), Divergence()
    there.add("F32", np.float32([low]), np.float32([high]), lambda at: (at,))
    back.add("F32", np.float32([high]), np.float32([low]), lambda at: (at,))
    assert there.max_ulps == back.max_ulps


def test_states_are_compared_place_by_place():
    a = {"rng": {"python": {"$tuple": [3, [1, 2, 3], None]}, "x": {"$int": "0x1"}, "t": {"$array": "rng/t"}}, "n": 1}
    b = {"rng": {"python": {"$tuple": [3, [1, 5, 6], 0.5]}, "x": {"$int": "0x2"}, "t": {"$array": "rng/t"}}, "n": True}
    found = {one.path: (one.a, one.b) for one in state_differences(0, a, {**b, "more": "x" * 100})}
    assert found == {
        "rng/python/1": ("2 of 3 elements differ, the first at 1: 2", "5"),
        "rng/python/2": ("null", "0.5"),
        "rng/x": ('{"$int": "0x1"}', '{"$int": "0x2"}'),
        "n": ("1", "true"),
        "more": ("absent", '"' + "x" * 56 + "..."),
    }
    assert list(state_differences(0, a, a)) == []


def test_states_of_other_kinds_are_shown_whole():
    a = {"x": {"$int": "0x1"}, "y": [1, 2, 3], "z": {"$tuple": [1, 2]}, "same": {"$array": "t"}}
    b = {"x": {"$float": "00"}, "y": [1, 2], "z": {"$tuple": [1]}, "same": {"$array": "t"}}
    assert [(one.path, one.a, one.b) for one in state_differences(0, a, b)] == [
        ("x", '{"$int": "0x1"}', '{"$float": "00"}'),
        ("y", "3 elements", "2 elements"),
        ("z", "2 elements", "1 elements"),
    ]


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


def test_ordered_dictionaries_differ_by_key():
    a, b = ({"best": {"$ordered": {"loss": loss, "same": 1}}} for loss in (1, 2))
    assert [(one.path, one.a, one.b) for one in state_differences(0, a, b)] == [("best/loss", "1", "2")]
