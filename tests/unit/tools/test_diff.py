"""What `ckptkit.tools.diff` says of two checkpoints, compared with what NumPy says of the same arrays."""

import itertools
import math
import shutil

import numpy as np
import pytest
from support.runs.dict_storage import DictStorage
from support.runs.rank_files import NAME, leaf, opened, write_ranks
from support.runs.scenario import corrupt, name_at

from ckptkit.checkpoint import shard_bytes
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.core.placement import Box
from ckptkit.core.tensors import leaf_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
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


def trained(root, run, *batches):
    with CheckpointManager(root, keep=KeepLatest(5)) as manager:
        manager.restore(run)
        names = []
        for at in batches:
            for _ in run.train_until(at):
                pass
            names.append(manager.save(run).result())
    return names


def test_each_file_that_differs_is_read_once(tmp_path):
    """The frozen one is equal, and not read at all."""
    names = trained(tmp_path, NumpyRun(accumulation_steps=4, size=5), 4, 12)
    storage = FaultyStorage(LocalStorage(tmp_path))
    found = compared(storage, storage, names, [])
    assert {(leaf.name, leaf.role, leaf.divergence.differing) for leaf in found.leaves} == {
        ("weights", "weights", 5),
        ("moments", "optimizer", 5),
    }
    files = ["optimizer-000.safetensors", "weights-000.safetensors"]
    read = [call.keys[0].rpartition("/")[2] for call in storage.calls if call.operation == "read_into"]
    assert sorted(read) == sorted(files * 2)
    assert not found.is_empty


class Stale(NumpyRun):
    """Trains, and saves what it began with; without an optimizer's state, if it is bare."""

    def __init__(self, *stale, bare=False, **options):
        super().__init__(**options)
        self._stale, self._bare = {name: getattr(self, name).copy() for name in stale}, bare

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
        assert (suspicion is None) == (words is None)
        assert words is None or (suspicion.startswith("2 updates lie between the two") and words in suspicion)
        assert compared(storage, storage, names[1:]).suspicion is None, "no update lies between them"


def test_damage_is_an_error_and_no_difference(tmp_path):
    *names, newest = trained(tmp_path, NumpyRun(accumulation_steps=4, size=5), 4, 12, 16)
    gone = Fault(lambda: shutil.rmtree(tmp_path / "checkpoints" / newest), operations={"read_into"})
    with pytest.raises(CheckpointNotFoundError, match="removed while"):  # which is no damage
        compared(LocalStorage(tmp_path), FaultyStorage(LocalStorage(tmp_path), [gone]), (names[0], newest))
    for name in names:
        corrupt(tmp_path, name)
        with pytest.raises(CorruptCheckpointError, match=f"{name}/rank-00000/weights-000"):
            compared(LocalStorage(tmp_path), LocalStorage(tmp_path), names)
        corrupt(tmp_path, name)  # flips it back
    corrupt(tmp_path, names[0], "rank-00000/weights-000.safetensors", "cut")
    with pytest.raises(CorruptCheckpointError, match="bytes, expected"):
        compared(LocalStorage(tmp_path), LocalStorage(tmp_path), names)


WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
CHANGED = WHOLE.copy()
CHANGED[2, 3] += 1


def cut(whole, rows, columns):
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
    assert {leaf.name: leaf.divergence.max_abs for leaf in compared(a, b).leaves} == dict.fromkeys(names, 1.0)


def test_diff_reports_form_changes_and_sorts_rows():
    ones = [leaf(name, np.ones(3)) for name in ("little", "part", "whole")]
    changed = {"little": [1.5, 1.5, 1.5], "part": [1.0, 2.0, 1.0], "whole": [2.0, 2.0, 2.0]}
    a = write_ranks([[leaf("x", np.zeros(3, np.float32)), *ones, leaf("a", np.ones(1))]])
    b = write_ranks([[leaf("x", np.zeros(4, np.float32)), *(leaf(name, np.array(v)) for name, v in changed.items())]])
    found = compared(a, b)
    kinds = {leaf.name: (leaf.kind, leaf.form_a, leaf.form_b) for leaf in found.leaves}
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
    found.add("BF16", bits(NAN), bits(2), lambda at: (at + 3,))  # another piece
    assert (found.nans_a, found.nans_b, found.differing, found.first) == (3, 1, 3, (1,))


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
    assert compared(a, b).leaves[0].divergence.differing == 1000
    assert max(asked) <= 128
