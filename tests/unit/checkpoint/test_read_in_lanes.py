"""Files are read several at once: of a local disk if their bytes have memory already, of a remote one by windows."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.corrupt import corrupt
from support.runs.dict_storage import DictStorage
from support.runs.grown import opened

from ckptkit.checkpoint import read
from ckptkit.checkpoint.read import ShardStream, load
from ckptkit.checkpoint.shard_bytes import ShardBytes
from ckptkit.core.contents import Buffers, Capture
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import each_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import ShardEntry, digest_of
from ckptkit.format.layout import CheckpointName
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


@pytest.mark.parametrize(("window_bytes", "at_once"), [(1 << 20, 3), (500_000, 2)])
def test_remote_files_without_memory_are_read_at_once_as_a_window_allows(
    checkpoint, window_bytes, at_once, monkeypatch
):
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
    assert sink.most <= window_bytes


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


NAME = CheckpointName(1, 5, 0)


def shards(*sizes: int) -> list[ShardEntry]:
    """Files of ``sizes`` bytes, of a rank each."""
    digests = [digest_of(bytes([rank]) * size) for rank, size in enumerate(sizes)]
    keys = [f"{NAME.rank_folder(rank)}/weights-000.safetensors" for rank in range(len(sizes))]
    shared = {"role": "weights", "tensors": [], "blocks": None}
    return [
        ShardEntry(key=key, size_bytes=size, digest=digest, **shared)
        for key, size, digest in zip(keys, sizes, digests, strict=True)
    ]


class Remembering(DictStorage):
    """Remembers what was read, and by whom."""

    def __init__(self, entries, window_bytes):
        super().__init__({one.key: bytes([number]) * one.size_bytes for number, one in enumerate(entries)})
        self.window_bytes = window_bytes
        self.calls = []

    def read_into(self, key, buffers, offset_bytes=0):
        self.calls.append((key, threading.current_thread() is threading.main_thread()))
        return super().read_into(key, buffers, offset_bytes)


@pytest.mark.parametrize("is_remote", [True, False])
def test_every_small_file_is_read_and_told_once(is_remote, monkeypatch):
    """Beside each other if they are remote; one that is cut is named."""
    monkeypatch.setattr(read, "_LANES_FROM_BYTES", 1000)
    storage = Remembering(entries := shards(*[10] * 20), 1000)
    storage.is_remote = is_remote
    told: list[int] = []
    ShardStream(storage, NAME, {}, told.append).prove_files(entries)
    assert sum(told) == 200
    beside = [key for key, in_main in storage.calls if not in_main]
    assert sorted(beside) == (sorted(storage.files) if is_remote else [])
    assert len(storage.calls) == 20
    storage.files |= {entries[6].key: b"short", NAME.commit_key: b""}
    with pytest.raises(CorruptCheckpointError, match=r"rank-00006/.*ends at byte 5"):
        ShardStream(storage, NAME, {}).prove_files(entries)


def test_batch_never_exceeds_window_or_one_file():
    files = ShardBytes(Remembering([], 100), NAME)
    groups = [[one.size_bytes for one in group] for group in files.groups(shards(60, 40, 1, 300, 50, 50, 100))]
    assert groups == [[60, 40], [1], [300], [50, 50], [100]]
    assert list(files.groups([])) == []
