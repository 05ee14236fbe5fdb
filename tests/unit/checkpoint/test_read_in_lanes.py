"""Files are read several at once: of a local disk if their bytes have memory already, of a remote one by windows."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.corrupt import corrupt
from support.runs.grown import opened

from ckptkit.checkpoint import read
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Buffers, Capture
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import each_of
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
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
        self.reads = []
        self.meet = meet

    def read_into(self, key, buffers, offset_bytes=0):
        self.reads.append((key.rpartition("/")[2], threading.get_ident()))
        self.meet(key)
        return super().read_into(key, buffers, offset_bytes)


class Noted(Buffers):
    """New memory for all; notes which threads ask for it, what was filled, and how much was lent at most."""

    def __init__(self, late=()):
        self.memory = {name: memoryview(bytearray(array.size)) for name, array in ARRAYS.items()}
        super().__init__(self.memory)
        self.late, self.threads, self.filled = late, set(), []
        self.held = self.most = 0

    def ready(self, name):
        self.threads.add(threading.get_ident())
        return None if name in self.late else self.memory[name]

    def buffer(self, name):
        self.threads.add(threading.get_ident())
        self.held += len(self.memory[name])
        self.most = max(self.most, self.held)
        return self.memory[name]

    def done(self, name):
        self.threads.add(threading.get_ident())
        self.filled.append(name)
        self.held -= len(self.memory[name]) * (name in self.late)

    def check(self):
        assert {name: bytes(one) for name, one in self.memory.items()} == BYTES
        assert sorted(self.filled) == sorted(ARRAYS)
        assert self.threads == {threading.get_ident()}


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


def test_altered_file_is_not_read_again_when_another_fails(checkpoint, stopped, monkeypatch, caplog):
    root, name = checkpoint
    corrupt(root / "checkpoints" / name / "rank-00000" / "optimizer-000.safetensors", at=100_000)
    monkeypatch.setattr(LocalStorage, "window_bytes", 1 << 20)  # each file is one window
    digested = threading.Event()

    def check_digest(shard, digest):
        if "optimizer" in shard.key:
            digested.set()
            assert stopped.wait(60)
        check(shard, digest)

    def meet(key):
        if "weights" in key:
            assert digested.wait(60)
            raise OSError("gone")

    check = read.check_digest
    monkeypatch.setattr(read, "check_digest", check_digest)
    storage = Watched(root, meet)
    with pytest.raises(OSError, match="gone"):
        contents_of(checkpoint, storage).read_into(Noted())
    names = [name for name, _ in storage.reads]  # the third lane may not have begun when the other two had ended
    assert names.count("optimizer-000.safetensors") == names.count("weights-000.safetensors") == 1
    assert "read once more" not in caplog.text
