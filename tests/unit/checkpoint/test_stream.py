"""Reading a checkpoint straight into memory: every byte once, in order, digested, with little else in memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.corrupt import corrupt
from support.process import python
from support.runs.grown import opened

from ckptkit.checkpoint.read import load, verify
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


def buffers(names):
    return {name: bytearray(b"." * SIZES[name]) for name in names}


@pytest.mark.parametrize("window_bytes", [7, 1000, 2 << 20])
@pytest.mark.parametrize("names", ["abcdef", "d", "bc", "ace", "f"])
def test_what_is_wanted_arrives_whatever_the_windows(checkpoint, names, window_bytes, monkeypatch):
    monkeypatch.setattr(LocalStorage, "window_bytes", window_bytes)
    contents, storage = loaded(checkpoint)
    found = buffers(names)
    done = []
    sink = Buffers({name: memoryview(one) for name, one in found.items()})
    sink.done = done.append
    contents.read_into(sink)
    assert {name: bytes(one) for name, one in found.items()} == {name: ARRAYS[name].tobytes() for name in names}
    assert sorted(done) == sorted(names)
    assert set(reads(storage)) <= {"optimizer-000.safetensors"}  # no other file holds one of them


def test_every_byte_is_read_once_and_told(checkpoint):
    told = []
    contents, storage = loaded(checkpoint, report=told.append)
    assert reads(storage) == []  # a NumpyRun has no tensors of the role state
    assert {name: contents.tensors[name].tobytes() for name in ARRAYS} == {n: a.tobytes() for n, a in ARRAYS.items()}
    root, name = checkpoint
    assert sum(told) == opened(LocalStorage(root), name).size_bytes
    before = len(told)
    assert contents.tensors is contents.tensors
    assert len(told) == before


class Lazy:
    """Gives memory when it is asked for and takes it back when it is filled."""

    names = SIZES.keys()

    def __init__(self):
        self.open = {}
        self.most_bytes = 0
        self.found = {}

    def ready(self, name):
        return None

    def buffer(self, name):
        self.open[name] = bytearray(SIZES[name])
        self.most_bytes = max(self.most_bytes, sum(map(len, self.open.values())))
        return memoryview(self.open[name])

    def done(self, name):
        self.found[name] = bytes(self.open.pop(name))


def test_memory_is_asked_for_when_it_is_needed(checkpoint, monkeypatch):
    monkeypatch.setattr(LocalStorage, "window_bytes", 512)
    contents, _ = loaded(checkpoint)
    lazy = Lazy()
    contents.read_into(lazy)
    assert lazy.found == {name: array.tobytes() for name, array in ARRAYS.items()}
    assert lazy.open == {}
    assert lazy.most_bytes == sum(SIZES.values())  # of one file: it may have to be read once more


@pytest.mark.parametrize("position", [0, 7, 8, 100, -1])
def test_altered_byte_anywhere_is_found(checkpoint, position):
    root, name = checkpoint
    corrupt(root / "checkpoints" / name / "rank-00000" / "optimizer-000.safetensors", at=position)
    contents, _ = loaded(checkpoint)
    for names in ("a", "abcdef"):
        with pytest.raises(CorruptCheckpointError, match="optimizer-000"):
            contents.read_into(Buffers({one: memoryview(bytearray(SIZES[one])) for one in names}))
    with pytest.raises(CorruptCheckpointError, match="optimizer-000"):
        contents.prove(["a"])
    with pytest.raises(CorruptCheckpointError, match="optimizer-000"):
        verify(LocalStorage(root), opened(LocalStorage(root), name))
    contents.prove(["weights"])  # lies in another file


def test_a_peek_reads_one_tensor_only(checkpoint):
    told = []
    contents, storage = loaded(checkpoint, report=told.append)
    assert contents.peek("e").tobytes() == ARRAYS["e"].tobytes()
    assert told == [SIZES["e"]]
    assert len(reads(storage)) == 1


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
    expected = CheckpointNotFoundError if change == "removed" else CorruptCheckpointError
    with pytest.raises(expected):
        contents.read_into(Buffers({name: memoryview(one) for name, one in buffers("abcdef").items()}))


def test_targets_that_do_not_fit_are_refused(checkpoint):
    contents, _ = loaded(checkpoint)
    with pytest.raises(ValueError, match=r"does not hold the tensors \['x'\]"):
        contents.read_into(Buffers({"x": memoryview(bytearray(3))}))
    with pytest.raises(ValueError, match="e has 4096 bytes"):
        contents.read_into(Buffers({"e": memoryview(bytearray(3))}))
    with pytest.raises(ValueError, match="e has 4096 bytes"):
        contents.read_into(Buffers({"e": np.zeros(4096, np.int32).data}))


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


def in_a_process(root, what):
    return python("-c", MEMORY, root, what).stdout


def test_restore_needs_few_windows_of_memory(root):
    in_a_process(root, "save")
    state_kib = 12 * 8 << 10
    assert int(in_a_process(root, "read_into")) < 4 * (local.WINDOW_BYTES >> 10)
    assert int(in_a_process(root, "tensors")) > 0.9 * state_kib  # the counterpart: it would have been seen
