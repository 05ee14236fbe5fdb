"""Reading straight into memory: several files at once, and with little memory beside that.

Of a local disk those whose bytes have memory already, of a remote one by windows.
"""

import threading

import numpy as np
import pytest
from support.corrupt import corrupt
from support.process import python
from support.runs.grown import opened

from ckptkit.checkpoint import read
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Buffers, Capture
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage, local
from ckptkit.testing.state import NumpyRun

ROLES = ("weights", "optimizer", "accumulators")
ARRAYS = {
    f"{role}.{at}": np.random.default_rng(at + len(role)).integers(0, 256, 40_000 + at, np.uint8)
    for role in ROLES
    for at in range(5)
}
BYTES = {name: array.tobytes() for name, array in ARRAYS.items()}
LANES = 3


class Wide(NumpyRun):
    def capture(self) -> Capture:
        leaves = [leaf_of(name, array, role=name.partition(".")[0]) for name, array in ARRAYS.items()]
        return Capture(super().capture().progress, tuple(leaves), {})


class Watched(LocalStorage):
    """Notes who reads what; ``meet`` is called before each read."""

    def __init__(self, root, meet=lambda key: None):
        super().__init__(root)
        self.reads, self.meet = [], meet

    def read_into(self, key, buffers, offset_bytes=0):
        self.reads.append((key.rpartition("/")[2], threading.get_ident()))
        self.meet(key)
        return super().read_into(key, buffers, offset_bytes)


class Noted(Buffers):
    """New memory for all; notes what was filled, and how much of the ``late`` was lent at most."""

    def __init__(self, late=()):
        self.memory = {name: memoryview(bytearray(array.size)) for name, array in ARRAYS.items()}
        super().__init__(self.memory)
        self.late, self.filled, self.held, self.most = late, [], 0, 0
        self.thread = threading.get_ident()

    def ready(self, name):
        assert threading.get_ident() == self.thread
        return None if name in self.late else self.memory[name]

    def buffer(self, name):
        assert threading.get_ident() == self.thread
        self.held += len(self.memory[name])
        self.most = max(self.most, self.held)
        return self.memory[name]

    def done(self, name):
        assert threading.get_ident() == self.thread
        self.filled.append(name)
        self.held -= len(self.memory[name]) * (name in self.late)

    def check(self):
        assert {name: bytes(memory) for name, memory in self.memory.items()} == BYTES
        assert sorted(self.filled) == sorted(ARRAYS)


@pytest.fixture(autouse=True)
def lanes(monkeypatch):
    monkeypatch.setattr(read, "_LANES_FROM_BYTES", 0)
    monkeypatch.setattr("os.cpu_count", lambda: LANES)
    monkeypatch.setattr(LocalStorage, "window_bytes", 4096)


@pytest.fixture
def checkpoint(root):
    with CheckpointManager(root) as manager:
        run = Wide()
        manager.restore(run)
        return root, manager.save(run).result()


def contents_of(checkpoint, storage, **options):
    return load(storage, opened(storage, checkpoint[1]), **options)


def test_lanes_read_at_the_same_time_what_one_would(checkpoint):
    together = threading.Barrier(LANES, timeout=60)
    first = set()

    def meet(key):
        if threading.get_ident() not in first:
            first.add(threading.get_ident())
            together.wait()  # breaks unless each lane is reading

    storage, told, sink = Watched(checkpoint[0], meet), [], Noted()
    contents_of(checkpoint, storage, report=told.append).read_into(sink)
    sink.check()
    assert {name for name, _ in storage.reads} == {f"{role}-000.safetensors" for role in ROLES}
    assert len({thread for _, thread in storage.reads} - {threading.get_ident()}) == LANES
    assert sum(told) == opened(storage, checkpoint[1]).size_bytes


def test_small_states_and_memory_that_is_not_there_are_read_here(checkpoint, monkeypatch):
    """The latter file by file."""
    storage, sink = Watched(checkpoint[0]), Noted(late=["optimizer.3"])
    contents_of(checkpoint, storage).read_into(sink)
    sink.check()
    assert {name for name, thread in storage.reads if thread == threading.get_ident()} == {"optimizer-000.safetensors"}
    monkeypatch.setattr(read, "_LANES_FROM_BYTES", 1 << 30)
    storage = Watched(checkpoint[0])
    contents_of(checkpoint, storage).read_into(Noted())
    assert {thread for _, thread in storage.reads} == {threading.get_ident()}


@pytest.mark.parametrize(("window_bytes", "at_once"), [(1 << 20, 3), (500_000, 2), (1000, 1)])
def test_remote_files_are_read_at_once_as_a_window_allows(checkpoint, window_bytes, at_once, monkeypatch):
    monkeypatch.setattr(LocalStorage, "is_remote", True)
    monkeypatch.setattr("ckptkit.checkpoint.shard_bytes.FEW", 1)
    monkeypatch.setattr(LocalStorage, "window_bytes", window_bytes)
    together = threading.Barrier(at_once, timeout=60)
    met = []

    def meet(key):
        met.append(key)
        if len(met) <= at_once:
            together.wait()  # breaks unless so many are being read

    storage, sink = Watched(checkpoint[0], meet), Noted(late=ARRAYS)
    contents_of(checkpoint, storage).read_into(sink)
    sink.check()
    assert sink.held == 0
    assert sink.most <= max(window_bytes, 200_010)  # of one file
    contents_of(checkpoint, storage).prove(ARRAYS)
    assert {thread for _, thread in storage.reads} != {threading.get_ident()} or at_once == 1


@pytest.fixture
def stopped(monkeypatch):
    """Is set once the lanes were told to end."""
    stopped = threading.Event()

    def watched(items, function, *, stop=lambda: None, **options):
        return each_of(items, function, stop=lambda: (stop(), stopped.set()), **options)

    monkeypatch.setattr(read, "each_of", watched)
    return stopped


def test_lanes_end_early_when_one_fails(checkpoint, stopped):
    together = threading.Barrier(LANES, timeout=60)

    def meet(key):
        if not stopped.is_set():
            together.wait()  # each lane is reading
        if "weights" in key:
            raise OSError("gone")
        assert stopped.wait(60)

    storage = Watched(checkpoint[0], meet)
    with pytest.raises(OSError, match="gone"):
        contents_of(checkpoint, storage).read_into(Noted())
    assert len(storage.reads) <= len(ROLES)  # of 150: each lane ends after the read that was under way


def test_altered_file_is_not_read_again_when_another_fails(checkpoint, stopped, monkeypatch):
    root, name = checkpoint
    corrupt(root / "checkpoints" / name / "rank-00000" / "optimizer-000.safetensors", at=100_000)
    monkeypatch.setattr(LocalStorage, "window_bytes", 1 << 20)  # each file is one window
    digested, check = threading.Event(), read.check_digest

    def check_digest(shard, digest):
        if "optimizer" in shard.key:
            digested.set()
            assert stopped.wait(60)
        check(shard, digest)

    def meet(key):
        if "weights" in key:
            assert digested.wait(60)
            raise OSError("gone")

    monkeypatch.setattr(read, "check_digest", check_digest)
    storage = Watched(root, meet)
    with pytest.raises(OSError, match="gone"):
        contents_of(checkpoint, storage).read_into(Noted())
    assert [file for file, _ in storage.reads].count("optimizer-000.safetensors") == 1


@pytest.mark.parametrize("change", ["cut", "gone", "removed"])
def test_file_changed_after_size_check_is_error(checkpoint, change):
    root, name = checkpoint
    contents = contents_of(checkpoint, LocalStorage(root))
    path = root / "checkpoints" / name / "rank-00000" / "optimizer-000.safetensors"
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    if change == "removed":
        (root / "checkpoints" / name / "COMMIT").unlink()
    with pytest.raises(CheckpointNotFoundError if change == "removed" else CorruptCheckpointError):
        contents.read_into(Noted())


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from ckptkit.core.contents import Buffers, Capture
from ckptkit.manager.manager import CheckpointManager
from ckptkit.core.tensors import leaf_of
from ckptkit.testing.state import NumpyRun

_, root, act = sys.argv
big = {f"t{i}": np.full(8 << 20, i if act == "save" else 99, np.uint8) for i in range(12)}

class Big(NumpyRun):
    def capture(self):
        leaves = tuple(leaf_of(n, a, role="weights") for n, a in big.items())
        return Capture(super().capture().progress, leaves, {})
    def apply(self, contents):
        if act == "read_into":
            contents.read_into(Buffers({n: a.data for n, a in big.items()}))
        else:
            for n, a in big.items():
                a[:] = contents.tensors[n]

def peak_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

run, manager, before = Big(), CheckpointManager(root), peak_kib()
manager.restore(run)
if act == "save":
    manager.save(run).result()
    manager.close()
print(peak_kib() - before)
assert all((array == i).all() for i, array in enumerate(big.values()))
"""


def test_restore_needs_few_windows_of_memory(root):
    python("-c", MEMORY, root, "save")
    state_kib = 12 * 8 << 10
    assert int(python("-c", MEMORY, root, "read_into").stdout) < 4 * (local.WINDOW_BYTES >> 10)
    assert int(python("-c", MEMORY, root, "tensors").stdout) > 0.9 * state_kib  # it would have been seen
