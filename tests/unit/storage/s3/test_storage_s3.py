"""`S3Storage` keeps the contract, and encrypts everything if it is asked to."""

import io

import pytest
from support.servers.moto_server import LISTED_KEYS

from ckptkit.storage import open_storage
from ckptkit.testing.contract import StorageContract

PART = 5 << 20
KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:us-east-1:123456789012:key/runs"}


def opened(endpoint, bucket, **options):
    given = {"key": "testing", "secret": "testing", "endpoint_url": endpoint, "default_block_size": PART, **options}
    return open_storage(f"s3://{bucket.name}/runs/vit", given)


class TestS3Storage(StorageContract):
    many_files = LISTED_KEYS + 10

    @pytest.fixture(autouse=True)
    def _bucket(self, bucket):
        self.bucket = bucket

    @pytest.fixture
    def storage(self, bucket):
        return opened(bucket.endpoint, bucket)

    def raw_get(self, storage, key):
        return self.bucket.get(f"runs/vit/{key}")

    def raw_put(self, storage, key, data):
        self.bucket.put(f"runs/vit/{key}", data)


def test_every_object_is_written_encrypted(bucket):
    storage, sent = opened(bucket.endpoint, bucket, s3_additional_kwargs=KMS), []
    api = storage._bucket._client.api  # the requests themselves: which operation asked for it
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
    assert opened(bucket.endpoint, bucket).read("large", PART) == bytes(PART + 1)
