"""Create-only files without a server that refuses: one writer at a time, and no file is ever replaced."""

import os
from datetime import timedelta

import pytest

from ckptkit.errors import StorageError
from ckptkit.storage import lease
from ckptkit.storage.lease import LEASE, Lease


class Overwriting:
    def __init__(self):
        self.files = {}
        self.puts = []

    def exists(self, key):
        return key in self.files

    def read(self, key, max_bytes):
        if key not in self.files:
            raise FileNotFoundError(key)
        return self.files[key][: max_bytes + 1]

    def put(self, key, data):
        self.puts.append(key)
        self.files[key] = data


@pytest.fixture
def storage():
    return Overwriting()


def create(storage, data=b"mine", wait=lambda _: None):
    Lease(storage, settle=timedelta(seconds=2), wait=wait).create("a/1", data)


def test_create_waits_for_lease_to_settle_alone(storage):
    """Threads of one process would take it from each other, also for two storages on one root."""
    waits = []
    create(storage, wait=lambda seconds: waits.append((seconds, lease._creating.locked())))
    assert storage.puts == [LEASE, "a/1"]
    assert waits == [(2.0, True)]
    assert not lease._creating.locked()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_creates_while_its_parent_does():
    with lease._creating:
        child = os.fork()
        if not child:
            os._exit(7 if lease._creating.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_no_file_is_replaced_and_no_lost_lease_held(storage):
    """Nor was one that vanishes."""
    storage.files["a/1"] = b"first"
    with pytest.raises(FileExistsError):
        create(storage)
    assert storage.files == {"a/1": b"first"}
    storage.files.clear()
    with pytest.raises(FileExistsError):
        create(storage, wait=lambda _: storage.put("a/1", b"the other's"))
    assert storage.files.pop("a/1") == b"the other's"
    with pytest.raises(StorageError, match="only one job"):
        create(storage, wait=lambda _: storage.put(LEASE, b"another"))
    assert "a/1" not in storage.files
    waits = []
    create(storage, wait=lambda _: waits.append(storage.files.pop(LEASE) if not waits else None))
    assert len(waits) == 2
