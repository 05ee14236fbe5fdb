"""Any URL of fsspec is a run root; here its memory file system."""

import contextlib
import io
import uuid
from datetime import timedelta
from unittest.mock import Mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from support.runs.grown import ON_REQUEST, run_at, train

from ckptkit.errors import CkptKitError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.storage import Listing, open_storage
from ckptkit.storage import fsspec as generic
from ckptkit.storage.fsspec import FsspecStorage
from ckptkit.testing.contract import StorageContract
from ckptkit.testing.faults import Killed

QUICK = {"settle": timedelta(milliseconds=1)}


@pytest.fixture
def url():
    made = f"memory://{uuid.uuid4().hex}/run"
    yield made
    system, path = fsspec.core.url_to_fs(made)
    if system.exists(path):
        system.rm(path, recursive=True)


@pytest.fixture
def storage(url):
    return open_storage(url, QUICK)


class TestMemory(StorageContract):
    @pytest.fixture
    def storage(self, url):
        return open_storage(url, QUICK)

    def raw_get(self, storage, key):
        system, path = fsspec.core.url_to_fs(storage.url)
        return system.cat_file(f"{path}/{key}") if system.isfile(f"{path}/{key}") else None

    def raw_put(self, storage, key, data):
        system, path = fsspec.core.url_to_fs(storage.url)
        system.pipe_file(f"{path}/{key}", data)


def refused(call, match):
    with pytest.raises(StorageError, match=match):
        call()


def reads(storage, key="a/1"):
    return lambda: storage.read(key, 9), lambda: storage.read_into(key, [memoryview(bytearray(9))])


@pytest.mark.parametrize("failing", ["close", "rm_file"])
def test_error_of_the_stream_arrives_unchanged(storage, monkeypatch, failing):
    """And a write that fails is out of the way."""

    def publish(file):  # as many file systems do when they close
        if vars(file).setdefault("is_open", True):
            file.is_open = False
            file.commit()

    monkeypatch.setattr(MemoryFile, "close", publish)
    for given in (b"", b"123", b"1234567"):
        refused(lambda given=given: storage.write("a/1", io.BytesIO(given), 6), "announced")
        assert storage.walk("") == {}

    failed = Mock(side_effect=OSError("gone, too"))
    monkeypatch.setattr(storage._system if failing == "rm_file" else MemoryFile, failing, failed)
    with pytest.raises(KeyboardInterrupt):
        storage.write("a/1", Mock(readinto=Mock(side_effect=KeyboardInterrupt)), 6)
    assert failed.called


def test_a_failing_file_system_is_no_answer(storage, monkeypatch):
    """Nor one that says, as of a bucket that is not there, that a place to write to does not exist."""
    refused(lambda: open_storage("gopher://host/run", {}), "gopher")
    refused(lambda: open_storage("memory://run", {"settle": 2}), "timedelta")
    write, create = lambda: storage.write("a/1", io.BytesIO(b"x"), 1), lambda: storage.create("a/1", b"x")
    for method, calls in [("makedirs", [write, create]), ("open", [write]), ("pipe_file", [create, storage.probe])]:
        with monkeypatch.context() as patch:
            patch.setattr(storage._system, method, Mock(side_effect=FileNotFoundError("no such bucket")))
            for call in calls:
                refused(call, "no such bucket")
    for method in ("ls", "info", "cat_file", "pipe_file", "rm_file", "isfile"):
        monkeypatch.setattr(storage._system, method, Mock(side_effect=RuntimeError("the file system's own")))
    for call in (*reads(storage), lambda: storage.list("a"), create, lambda: storage.delete(["a"])):
        refused(call, "own")


def test_nothing_is_taken_from_a_listing_cache(storage, monkeypatch):
    """Another process may have written meanwhile, whatever this one listed before."""
    watched = Mock(wraps=storage._system)
    monkeypatch.setattr(storage, "_system", watched)
    storage.create("a/1", b"x")
    for call in (lambda: storage.exists("a/1"), lambda: storage.read("a/1", 9), lambda: storage.list("a")):
        watched.reset_mock()
        call()
        assert watched.mock_calls[0][0] == "invalidate_cache"


def test_buffers_of_any_size_are_filled(storage, monkeypatch):
    monkeypatch.setattr(generic, "_PIECE_BYTES", 4)
    data = bytes(range(30))
    storage.create("a", data)
    for start, sizes in [(0, [9]), (5, [3, 6]), (0, [11, 1]), (5, [5, 0, 30])]:
        buffers = [bytearray(size) for size in sizes]
        count = storage.read_into("a", list(map(memoryview, buffers)), start)
        assert b"".join(buffers)[:count] == data[start : start + sum(sizes)]


def test_a_folder_and_a_read_that_comes_short_are_no_file(storage, monkeypatch):
    storage.create("a/1", b"12345")
    assert not storage.exists("a")
    for call in reads(storage, "a"):
        with pytest.raises(FileNotFoundError, match="a is a folder"):
            call()
    monkeypatch.setattr(storage._system, "cat_file", lambda path, start, end: b"123")
    for call in reads(storage):
        refused(call, r"run/a/1: 3 bytes arrived, expected 5")


def test_only_what_lies_in_a_folder_is_its_listing(storage, monkeypatch):
    ls, more = storage._system.ls, []
    monkeypatch.setattr(storage._system, "ls", lambda path, **options: [*ls(path, **options), *more])
    storage.create("a/1", b"x")
    for name in (storage._at("a"), storage._at("a/")):  # some list the folder itself as well
        more[:] = [{"name": name, "type": "directory", "size": 0}]
        assert storage.list("a") == Listing(frozenset(), {"1": 1})
    for name in ("/other/run/a/2", storage._at("a-other/2")):
        more[:] = [{"name": name, "type": "file", "size": 5}]
        refused(lambda: storage.list("a"), f"lists '.*{name[-3:]}' in it")


def test_the_lease_waits_as_long_as_asked(url, caplog):
    storage, waits = open_storage(url, {"settle": timedelta(seconds=7)}), []
    storage._lease._wait = waits.append
    storage.create("a", b"1")
    storage.probe()
    storage.probe()
    assert waits == [7.0]
    assert caplog.text.count("If a request takes longer than 0:00:07, two jobs may both continue") == 1


class Torn(MemoryFileSystem):
    """Its put is no more atomic than that of sftp: the first one of a key that ends so breaks off in the middle."""

    cachable = False

    def __init__(self, end, error):
        super().__init__()
        self.end, self.error, self.fired = end, error, 0

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        breaks = path.endswith(self.end) and not self.fired
        super().pipe_file(path, value[: len(value) // 2] if breaks else value, mode, **kwargs)
        if breaks:
            self.fired += 1
            raise self.error


@pytest.mark.covering(1)
@pytest.mark.parametrize("error", [OSError("connection lost"), Killed("killed")], ids=["error", "kill"])
@pytest.mark.parametrize(
    "end", ["attempts/000002.json", "c0000000001-m0000/COMMIT", "lease.json", "a000002-0001.jsonl"]
)
def test_torn_put_loses_no_reported_checkpoint(url, end, error):
    """A document that is there by half counts as damaged: nothing is concluded from it."""
    system, path = Torn(end, error), url.removeprefix("memory:/")

    def begun():
        storage = FsspecStorage(url, system, path, settle=timedelta(milliseconds=1))
        manager, run = CheckpointManager(storage, save=ON_REQUEST, saving=Saving(on_error="raise")), run_at(0)
        manager.restore(run)
        return manager, run

    system.fired = 1
    manager, run = begun()
    train(run, 3)
    reported = [manager.save(run).result()]
    manager.close()
    system.fired = 0
    with contextlib.suppress(CkptKitError, Killed):
        manager, run = begun()
        for at in (4, 5):
            train(run, at)
            reported.append(manager.save(run).result())
        manager.close()
    assert system.fired == 1
    manager, run = begun()
    assert run.applied == reported[-1:] or (isinstance(error, Killed) and run.applied > reported[-1:])
    train(run, 7)
    assert manager.save(run).result()
    assert run.digest() == run_at(7).digest()
    manager.close()
