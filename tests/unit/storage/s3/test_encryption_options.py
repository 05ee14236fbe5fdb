"""Encryption at rest: what asks for it arrives on every object that is written, however it is written."""

from __future__ import annotations

from datetime import timedelta

import pytest

import ckptkit as ck
from ckptkit.errors import StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.storage import open_storage
from ckptkit.testing.state import NumpyRun

KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:us-east-1:123456789012:key/runs"}
PLAIN = {"ServerSideEncryption": "AES256"}
ELEMENTS = (5 << 20) // 4 + 1000  # of each tensor: more than one part of an upload


def saved(storage):
    run = NumpyRun(size=ELEMENTS)
    with CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1), saving=Saving(when_busy="wait")) as manager:
        manager.restore(run)
        run.train_step()
        manager.save(run).result()
    return run


@pytest.mark.parametrize(("scheme", "asked"), [("s3", KMS), ("obs", PLAIN)], ids=["s3", "obs"])
def test_every_object_is_written_encrypted(bucket, monkeypatch, scheme, asked):
    """Reading needs no option."""
    sent = []
    options = {"key": "testing", "secret": "testing", "endpoint_url": bucket.endpoint, "default_block_size": 5 << 20}
    url = f"{scheme}://{bucket.name}/run"
    storage = open_storage(url, {**options, "s3_additional_kwargs": asked})
    api = storage._bucket._client.api  # the requests themselves: which operation asked for it
    api.meta.events.register("before-call.s3", lambda model, params, **_: sent.append((model.name, params)))
    run = saved(storage)
    creating = {"PutObject", "CreateMultipartUpload"}
    assert {name for name, _ in sent} >= {*creating, "UploadPart", "CompleteMultipartUpload"}
    for name, params in sent:
        found = params["headers"].get("x-amz-server-side-encryption")
        assert found == (asked["ServerSideEncryption"] if name in creating else None), name
    keys = bucket.keys()
    assert {key.rpartition("/")[2] for key in keys} >= {
        *("probe", "run.json", "000001.json", "weights-000.safetensors", "manifest.json", "COMMIT"),
    }
    assert any(key.startswith("run/frozen/") for key in keys)
    for key in keys:
        head = bucket.client.head_object(Bucket=bucket.name, Key=key)
        assert {name: head.get(name) for name in asked} == asked, key
    again = NumpyRun(seed=1, size=ELEMENTS)
    with CheckpointManager(open_storage(url, options)) as manager:
        manager.restore(again)
    assert again.digest() == run.digest()


def test_the_lease_asks_for_it_as_well(bucket, proxy):
    proxy.without_conditions = True
    options = {"key": "testing", "secret": "testing", "endpoint_url": proxy.endpoint, "s3_additional_kwargs": PLAIN}
    storage = open_storage(f"s3://{bucket.name}/run", {**options, "settle": timedelta(milliseconds=1)})
    storage.create("COMMIT", b"1")
    keys = bucket.keys()
    assert "run/lease.json" in keys
    for key in keys:
        assert bucket.client.head_object(Bucket=bucket.name, Key=key)["ServerSideEncryption"] == "AES256", key


def test_customer_key_is_refused_before_any_write(bucket):
    options = {"endpoint_url": bucket.endpoint, "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256"}}
    with pytest.raises(StorageError, match="SSEKMSKeyId"):
        open_storage(f"s3://{bucket.name}/run", options)
