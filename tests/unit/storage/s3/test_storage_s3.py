"""`S3Storage` keeps the contract, on moto and on demand on others (`tests/support/servers`), and encrypts if asked to.

Ceph's gateway checks signatures and has atomic conditional puts; rclone ignores conditions, so the lease is at work.
"""

import io
import uuid
from datetime import timedelta

import pytest
from support.servers.client import s3_client
from support.servers.fixtures import Bucket
from support.servers.moto_server import HOST, LISTED_KEYS

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage
from ckptkit.testing.contract import StorageContract

PART = 5 << 20
KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:us-east-1:123456789012:key/runs"}
KEYS = {"key": "testing", "secret": "testing", "default_block_size": PART, "settle": timedelta(milliseconds=20)}


def opened(bucket, **options):
    return open_storage(f"s3://{bucket.name}/runs/vit", {**KEYS, "endpoint_url": bucket.endpoint, **options})


class InBucket(StorageContract):
    @pytest.fixture
    def storage(self, served):
        self.bucket = served
        return opened(served)

    def raw_get(self, storage, key):
        return self.bucket.get(f"runs/vit/{key}")

    def raw_put(self, storage, key, data):
        self.bucket.put(f"runs/vit/{key}", data)


class TestS3Storage(InBucket):
    many_files = LISTED_KEYS + 10

    @pytest.fixture
    def served(self, bucket):
        return bucket


def bucket_of(endpoint: str):
    """One for each test; it goes with its server, since rclone keeps the folders of what was deleted."""
    made = Bucket(f"contract-{uuid.uuid4().hex}", endpoint, s3_client(endpoint))
    made.client.create_bucket(Bucket=made.name)
    yield made
    made.client.close()


@pytest.mark.radosgw
class TestOnCeph(InBucket):
    @pytest.fixture
    def served(self, radosgw):
        yield from bucket_of(radosgw)

    def test_conditions_are_honoured(self, storage):
        storage.probe()
        assert storage._has_conditions is True

    def test_wrong_keys_are_told_by_the_probe(self, served):
        for wrong in ({"key": "nobody"}, {"secret": "wrong"}):
            with pytest.raises(StorageError, match=r"access key is unknown|does not belong to the access key"):
                opened(served, **wrong).probe()

    @pytest.mark.usefixtures("localhost_names")
    def test_obs_uses_virtual_hosted_addresses_on_request(self, served, radosgw):
        style = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
        endpoint = radosgw.replace(HOST, "localhost")
        root = open_storage(f"obs://{served.name}/obs", {**KEYS, **style, "endpoint_url": endpoint})
        data = bytes(range(256)) * 50_000
        root.write("a/1", io.BytesIO(data), len(data))
        assert served.get("obs/a/1") == data


@pytest.mark.rclone
class TestOnRclone(InBucket):
    @pytest.fixture
    def served(self, rclone):
        yield from bucket_of(rclone)

    def test_that_conditions_are_ignored_is_found_out(self, storage, caplog):
        storage.probe()
        assert storage._has_conditions is False
        assert "ignores If-None-Match" in caplog.text


def test_every_object_is_written_encrypted(bucket):
    storage, sent = opened(bucket, s3_additional_kwargs=KMS), []
    api = storage._client.api  # the requests themselves: which operation asked for it
    api.meta.events.register("before-call.s3", lambda model, params, **_: sent.append((model.name, params)))
    storage.create("COMMIT", b"1")
    storage.write("small", io.BytesIO(b"2"), 1)
    storage.write("large", io.BytesIO(bytes(PART + 1)), PART + 1)
    creating = {"PutObject", "CreateMultipartUpload"}
    assert {name for name, _ in sent} >= {*creating, "UploadPart", "CompleteMultipartUpload"}
    for name, params in sent:
        asked = params["headers"].get("x-amz-server-side-encryption")
        assert asked == ("aws:kms" if name in creating else None), name
    keys = bucket.keys()
    assert len(keys) == 4  # with the probe
    for key in keys:
        head = bucket.client.head_object(Bucket=bucket.name, Key=key)
        assert {name: head.get(name) for name in KMS} == KMS, key
    assert opened(bucket).read("large", PART) == bytes(PART + 1)
