"""`S3Storage` keeps the contract, through faults of the network and where conditions are ignored."""

from datetime import timedelta

import pytest
from support.servers.moto_server import LISTED_KEYS

from ckptkit.storage import open_storage
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
