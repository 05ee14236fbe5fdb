"""`S3Storage` keeps the contract, through faults of the network and where conditions are ignored."""

from datetime import timedelta

import pytest
from support.servers.moto_server import LISTED_KEYS

from ckptkit.storage import open_storage
from ckptkit.storage.s3.part_memory import PartMemory
from ckptkit.testing.contract import StorageContract

PART = 5 << 20


def opened(endpoint, bucket, **options):
    given = {"key": "testing", "secret": "testing", "endpoint_url": endpoint, "default_block_size": PART, **options}
    return open_storage(f"s3://{bucket.name}/runs/vit", given)


class InBucket(StorageContract):
    many_files = LISTED_KEYS + 10

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket):
        self.bucket = bucket

    def raw_get(self, storage, key):
        return self.bucket.get(f"runs/vit/{key}")

    def raw_put(self, storage, key, data):
        self.bucket.put(f"runs/vit/{key}", data)


class TestS3Storage(InBucket):
    @pytest.fixture
    def storage(self, bucket):
        return opened(bucket.endpoint, bucket)

    @pytest.mark.extended
    def test_more_files_than_one_request_deletes(self, storage):
        self.many_files = StorageContract.many_files
        self.test_deleting_many_files_removes_all(storage)


@pytest.mark.extended  # the same server and the same code, but for the opening, which other tests do
class TestObs(InBucket):
    """The same server, reached as OBS is."""

    @pytest.fixture
    def storage(self, bucket, monkeypatch):
        for name, value in {"ENDPOINT": bucket.endpoint, "ACCESS_KEY_ID": "testing", "SECRET_ACCESS_KEY": "x"}.items():
            monkeypatch.setenv(f"OBS_{name}", value)
        return open_storage(f"obs://{bucket.name}/runs/vit", {"default_block_size": PART})


@pytest.mark.extended  # `test_lease` has what differs
class TestThroughALease(InBucket):
    """The server ignores ``If-None-Match``."""

    @pytest.fixture
    def storage(self, bucket, proxy):
        proxy.without_conditions = True
        return opened(proxy.endpoint, bucket, settle=timedelta(milliseconds=1))


def test_memory_of_one_file_is_kept():
    """However many were written at once."""
    memory = PartMemory(2)
    with memory.lent(2, 10) as first, memory.lent(2, 10) as second:
        pass
    with memory.lent(4, 10) as later:
        assert sum(any(one.obj is old.obj for old in (*first, *second)) for one in later) == 2


def test_memory_lent_has_the_size_asked_for():
    """Parts of a huge file are larger than those of the one before, and of the one after it."""
    memory = PartMemory(2)
    for size_bytes in (20, 10, 30, 10):
        with memory.lent(2, size_bytes) as lent:
            assert [len(one) for one in lent] == [size_bytes] * 2
