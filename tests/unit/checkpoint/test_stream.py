"""Reading a checkpoint straight into memory: every byte once, in order, digested, with little else in memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.process import python
from support.refusals import unrefused
from support.runs.grown import opened

from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Buffers, Capture
from ckptkit.core.tensors import leaf_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage, local
from ckptkit.testing.faults import FaultyStorage
from ckptkit.testing.state import NumpyRun

SIZES = {"a": 1000, "b": 0, "c": 1, "d": 70_001, "e": 4096, "f": 3}
ARRAYS = {name: np.random.default_rng(size).integers(0, 256, size, np.uint8) for name, size in SIZES.items()}


class Wide(NumpyRun):
    def capture(self) -> Capture:
        capture = super().capture()
        leaves = [leaf_of(name, array, role="optimizer", placement="replicated") for name, array in ARRAYS.items()]
        return Capture(capture.progress, (*capture.leaves, *leaves), capture.state)


@pytest.fixture
def checkpoint(root):
    with CheckpointManager(root) as manager:
        run = Wide()
        manager.restore(run)
        name = manager.save(run).result()
    return root, name


def loaded(checkpoint, **options):
    root, name = checkpoint
    storage = FaultyStorage(LocalStorage(root))
    return load(storage, opened(storage, name), **options), storage


def reads(storage):
    return [call.keys[0].rpartition("/")[2] for call in storage.calls if call.operation == "read_into"]


class Lazy(Buffers):
    """Gives memory when it is asked for and takes it back when it is filled."""

    def __init__(self, names):
        super().__init__(dict.fromkeys(names))
        self.lent = {}
        self.most_bytes = 0
        self.filled = {}

    def ready(self, name):
        return None

    def buffer(self, name):
        self.lent[name] = bytearray(SIZES[name])
        self.most_bytes = max(self.most_bytes, sum(map(len, self.lent.values())))
        return memoryview(self.lent[name])

    def done(self, name):
        self.filled[name] = bytes(self.lent.pop(name))


@pytest.mark.parametrize("window_bytes", [7, 1000, 2 << 20])
def test_what_is_wanted_arrives_whatever_the_windows(checkpoint, window_bytes, monkeypatch):
    """And memory is asked for when it is needed: of one file, which may have to be read once more."""
    monkeypatch.setattr(LocalStorage, "window_bytes", window_bytes)
    contents, storage = loaded(checkpoint)
    for names in ("abcdef", "d", "bc", "ace", "f"):
        memory = Lazy(names)
        contents.read_into(memory)
        assert memory.filled == {name: ARRAYS[name].tobytes() for name in names}
        assert (memory.lent, memory.most_bytes) == ({}, sum(SIZES[name] for name in names))
    assert set(reads(storage)) == {"optimizer-000.safetensors"}  # no other file holds one of them


def test_every_byte_is_read_once_and_told(checkpoint):
    told = []
    contents, storage = loaded(checkpoint, report=told.append)
    assert reads(storage) == []  # a NumpyRun has no tensors of the role state
    assert contents.peek("e").tobytes() == ARRAYS["e"].tobytes()
    assert told == [SIZES["e"]]  # one tensor only
    assert len(reads(storage)) == 1
    assert {name: contents.tensors[name].tobytes() for name in ARRAYS} == {n: a.tobytes() for n, a in ARRAYS.items()}
    root, name = checkpoint
    assert sum(told[1:]) == opened(LocalStorage(root), name).size_bytes
    before = len(told)
    assert contents.tensors is contents.tensors
    assert len(told) == before


@pytest.mark.parametrize("change", ["cut", "gone", "removed"])
def test_file_changed_after_size_check_is_error(checkpoint, change):
    root, name = checkpoint
    contents, _ = loaded(checkpoint)
    path = root / "checkpoints" / name / "rank-00000" / "optimizer-000.safetensors"
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    if change == "removed":
        (root / "checkpoints" / name / "COMMIT").unlink()
    with pytest.raises(CheckpointNotFoundError if change == "removed" else CorruptCheckpointError):
        contents.read_into(Lazy("abcdef"))


def test_targets_that_do_not_fit_are_refused(checkpoint):
    contents, _ = loaded(checkpoint)
    rows = [
        ({"x": memoryview(bytearray(3))}, r"does not hold the tensors \['x'\]"),
        ({"e": memoryview(bytearray(3))}, "e has 4096 bytes"),
        ({"e": np.zeros(4096, np.int32).data}, "e has 4096 bytes"),
        ({"e": np.zeros((4096, 1), np.uint8).data}, "e has 4096 bytes"),
    ]
    assert unrefused(ValueError, lambda memory: contents.read_into(Buffers(memory)), rows) == {}


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from ckptkit.core.contents import Buffers, Capture
from ckptkit.manager.manager import CheckpointManager
from ckptkit.core.tensors import leaf_of
from ckptkit.testing.state import NumpyRun

class Big(NumpyRun):
    def __init__(self):
        super().__init__()
        self.big = {f"t{i}": np.full(8 << 20, i, np.uint8) for i in range(12)}
    def capture(self):
        leaves = tuple(leaf_of(n, a, role="weights") for n, a in self.big.items())
        return Capture(super().capture().progress, leaves, {})
    def apply(self, contents):
        if sys.argv[2] == "read_into":
            contents.read_into(Buffers({n: a.data for n, a in self.big.items()}))
        else:
            for n, a in self.big.items():
                a[:] = contents.tensors[n]

def peak_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

run = Big()
for array in run.big.values():
    array ^= 0xFF
manager = CheckpointManager(sys.argv[1])
if sys.argv[2] == "save":
    for array in run.big.values():
        array ^= 0xFF
    manager.restore(run)
    manager.save(run).result()
    manager.close()
else:
    before = peak_kib()
    manager.restore(run)
    print(peak_kib() - before)
    assert all((array == i).all() for i, array in enumerate(run.big.values()))
"""


def test_restore_needs_few_windows_of_memory(root):
    python("-c", MEMORY, root, "save")
    state_kib = 12 * 8 << 10
    assert int(python("-c", MEMORY, root, "read_into").stdout) < 4 * (local.WINDOW_BYTES >> 10)
    assert int(python("-c", MEMORY, root, "tensors").stdout) > 0.9 * state_kib  # it would have been seen
