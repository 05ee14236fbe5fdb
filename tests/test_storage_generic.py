"""Any URL of fsspec is a run root; here its memory file system."""

import uuid
from datetime import timedelta

import fsspec
import pytest

from ckptkit.errors import StorageError
from ckptkit.manager import CheckpointManager
from ckptkit.storage import open_storage
from ckptkit.testing.contract import StorageContract
from ckptkit.testing.state import NumpyRun

QUICK = {"settle": timedelta(milliseconds=1)}


@pytest.fixture
def url():
    made = f"memory://{uuid.uuid4().hex}/run"
    yield made
    system, path = fsspec.core.url_to_fs(made)
    if system.exists(path):
        system.rm(path, recursive=True)


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


def test_a_run_is_saved_and_resumed_there(url, caplog):
    first = NumpyRun(accumulation_steps=3)
    with CheckpointManager(url, storage_options=QUICK) as manager:
        manager.restore(first)
        for _ in first.train_until(7):
            pass
        name = manager.save(first).result()
    assert "A lease takes their place" in caplog.text
    second = NumpyRun(seed=9, accumulation_steps=3)
    with CheckpointManager(url, storage_options=QUICK) as manager:
        assert manager.restore(second).checkpoint == name
    assert second.digest() == first.digest()


@pytest.mark.parametrize(
    ("root", "options", "message"),
    [
        ("gopher://host/run", {}, "gopher"),
        ("memory://run", {"settle": 2}, "timedelta"),
    ],
)
def test_what_fsspec_cannot_open_is_a_storage_error(root, options, message):
    with pytest.raises(StorageError, match=message):
        open_storage(root, options)


def test_a_failing_file_system_is_no_answer(url, monkeypatch):
    storage = open_storage(url, QUICK)

    def fail(*_, **__):
        raise RuntimeError("the file system's own")

    for method in ("ls", "info", "cat_file", "pipe_file", "rm_file", "isfile"):
        monkeypatch.setattr(storage._system, method, fail)
    with pytest.raises(StorageError, match="own"):
        storage.list("a")
    with pytest.raises(StorageError, match="own"):
        storage.read("a", 1)
    with pytest.raises(StorageError, match="own"):
        storage.create("a", b"x")
    with pytest.raises(StorageError, match="own"):
        storage.delete(["a"])
