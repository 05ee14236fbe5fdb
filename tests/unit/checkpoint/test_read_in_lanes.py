"""Windows of a local disk's files are read several at once, where their bytes have their memory already."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.corrupt import corrupt
from support.runs.grown import opened

from ckptkit.checkpoint import read as stream
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Buffers, Capture
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import each_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage
from ckptkit.testing.state import NumpyRun

ROLES = ("weights", "optimizer", "accumulators")
ARRAYS = {
    f"{role}.{at}": np.random.default_rng(at + len(role)).integers(0, 256, 40_000 + at, np.uint8)
    for role in ROLES
    for at in range(5)
}


class Wide(NumpyRun):
    def capture(self) -> Capture:
        leaves = [
            leaf_of(name, array, role=name.partition(".")[0], placement="replicated") for name, array in ARRAYS.items()
        ]
        return Capture(super().capture().progress, tuple(leaves), {})


LANES = 3
TURN = stream._Turn


class Watched(LocalStorage):
    """Notes who reads what; ``meet`` is called before each read, ``part`` after it."""

    def __init__(self, root, meet=lambda key: None, part=lambda number: None):
        super().__init__(root)
        self.reads = []
        self.meet = meet
        self.part = part
        self.numbers = iter(range(1_000_000))

    def read_into(self, key, buffers, offset_bytes=0):
        self.reads.append((key.rpartition("/")[2], threading.get_ident()))
        number = next(self.numbers)
        self.meet(key)
        count = super().read_into(key, buffers, offset_bytes)
        self.part(number)
        return count


class Noted(Buffers):
    def __init__(self, memory):
        super().__init__(memory)
        self.threads, self.filled = set(), []

    def ready(self, name):
        self.threads.add(threading.get_ident())
        return super().ready(name)

    def done(self, name):
        self.threads.add(threading.get_ident())
        self.filled.append(name)


@pytest.fixture(autouse=True)
def lanes(monkeypatch):
    monkeypatch.setattr(stream, "_LANES_FROM_BYTES", 0)
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


def memory():
    return {name: memoryview(bytearray(array.size)) for name, array in ARRAYS.items()}


def test_lanes_read_at_the_same_time_what_one_would(checkpoint):
    together = threading.Barrier(LANES, timeout=60)
    first = set()

    def meet(key):
        if threading.get_ident() not in first:
            first.add(threading.get_ident())
            together.wait()  # breaks unless each lane is reading

    storage = Watched(checkpoint[0], meet)
    told = []
    found = memory()
    sink = Noted(found)
    contents_of(checkpoint, storage, report=told.append).read_into(sink)
    assert {name: bytes(one) for name, one in found.items()} == {name: a.tobytes() for name, a in ARRAYS.items()}
    assert sorted(sink.filled) == sorted(ARRAYS)
    assert sink.threads == {threading.get_ident()}
    assert {name for name, _ in storage.reads} == {f"{role}-000.safetensors" for role in ROLES}
    assert len({thread for _, thread in storage.reads} - {threading.get_ident()}) == LANES
    assert sum(told) == opened(storage, checkpoint[1]).size_bytes


@pytest.mark.parametrize(
    ("per_file", "slow"), [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (50, 0), (50, 48), (50, 49), (50, 50)]
)
def test_unwanted_bytes_keep_their_memory_until_they_are_digested(checkpoint, per_file, slow, monkeypatch):
    storage = Watched(checkpoint[0])
    contents_of(checkpoint, storage).prove(ARRAYS)
    first = next(checkpoint[0].rglob(storage.reads[0][0]))  # its last window ends where it does
    monkeypatch.setattr(LocalStorage, "window_bytes", first.stat().st_size // per_file)
    others_have_read = threading.Event()

    def part(number):
        if number == slow:
            assert others_have_read.wait(60)
        elif number >= slow + LANES - 1:
            others_have_read.set()

    contents = contents_of(checkpoint, Watched(checkpoint[0], part=part))
    contents.prove(ARRAYS)  # digests, and keeps nothing
    assert others_have_read.is_set()


def test_small_state_is_read_without_threads(checkpoint, monkeypatch):
    monkeypatch.setattr(stream, "_LANES_FROM_BYTES", 1 << 30)
    storage = Watched(checkpoint[0])
    contents_of(checkpoint, storage).read_into(Noted(memory()))
    assert {thread for _, thread in storage.reads} == {threading.get_ident()}


def test_memory_that_is_not_there_yet_is_filled_file_by_file(checkpoint):
    class Partly(Noted):
        def ready(self, name):
            return None if name == "optimizer.3" else super().ready(name)

        def buffer(self, name):
            return super().ready(name)

    storage, found = Watched(checkpoint[0]), memory()
    contents_of(checkpoint, storage).read_into(Partly(found))
    assert {name: bytes(one) for name, one in found.items()} == {name: a.tobytes() for name, a in ARRAYS.items()}
    here = {name for name, thread in storage.reads if thread == threading.get_ident()}
    assert here == {"optimizer-000.safetensors"}


def test_large_file_is_read_by_all_lanes(checkpoint):
    """A state of one large file would otherwise be read by one lane."""
    together = threading.Barrier(LANES, timeout=60)
    storage = Watched(checkpoint[0], lambda key: together.wait() if len(storage.reads) <= LANES else None)
    found = {name: one for name, one in memory().items() if name.startswith("weights")}
    contents_of(checkpoint, storage).read_into(Buffers(found))
    assert {name for name, _ in storage.reads} == {"weights-000.safetensors"}
    assert all(bytes(one) == ARRAYS[name].tobytes() for name, one in found.items())


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("at", [0, 100_000, -1])
def test_altered_byte_in_any_lane_is_found(checkpoint, role, at):
    root, name = checkpoint
    corrupt(root / "checkpoints" / name / "rank-00000" / f"{role}-000.safetensors", at=at)
    contents = contents_of(checkpoint, LocalStorage(root))
    with pytest.raises(CorruptCheckpointError, match=f"{role}-000"):
        contents.read_into(Buffers(memory()))
    with pytest.raises(CorruptCheckpointError, match=f"{role}-000"):
        contents.prove(ARRAYS)


def test_lanes_end_early_when_one_fails(checkpoint, monkeypatch):
    stopped = threading.Event()

    def watched(items, function, *, stop, **options):
        return each_of(items, function, stop=lambda: (stop(), stopped.set()), **options)

    def meet(key):
        if "weights" in key:
            raise OSError("gone")
        assert stopped.wait(60)

    monkeypatch.setattr(stream, "each_of", watched)
    storage = Watched(checkpoint[0], meet)
    with pytest.raises(OSError, match="gone"):
        contents_of(checkpoint, storage).read_into(Buffers(memory()))
    assert len(storage.reads) <= len(ROLES)  # of 150: each lane ends after the read that was under way


def test_turns_are_made_as_they_are_needed(checkpoint, monkeypatch):
    """A file of a petabyte, most of it a hole, would otherwise fill the memory before its first byte is read."""
    made = []
    monkeypatch.setattr(stream, "_Turn", lambda *parts: made.append(parts) or TURN(*parts))
    monkeypatch.setattr(stream, "_TURNS_AT_ONCE", LANES + 1, raising=False)
    storage = Watched(checkpoint[0], lambda key: at_most.append(len(made) - len(storage.reads)))
    at_most, found = [], memory()
    contents_of(checkpoint, storage).read_into(Noted(found))
    assert max(at_most) <= LANES + 1
    assert {name: bytes(one) for name, one in found.items()} == {name: a.tobytes() for name, a in ARRAYS.items()}
