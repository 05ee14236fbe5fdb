"""`S3Storage` keeps the contract on servers that are not moto; on demand, as `tests/support/servers` says.

Ceph's gateway checks signatures and has atomic conditional puts; rclone ignores conditions, so the lease is at work.
"""

from __future__ import annotations

import io
import uuid
from datetime import timedelta

import pytest
from support.servers.client import s3_client
from support.servers.fixtures import Bucket

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage
from ckptkit.testing.contract import StorageContract

KEYS = {"key": "testing", "secret": "testing", "default_block_size": 5 << 20, "settle": timedelta(milliseconds=20)}


def bucket_of(endpoint: str):
    """One for each test; it goes with its server, since rclone keeps the folders of what was deleted."""
    made = Bucket(f"contract-{uuid.uuid4().hex}", endpoint, s3_client(endpoint))
    made.client.create_bucket(Bucket=made.name)
    yield made
    made.client.close()


class OnServer(StorageContract):
    @pytest.fixture(autouse=True)
    def _look(self, served):
        self.served = served

    @pytest.fixture
    def storage(self, served):
        return open_storage(f"s3://{served.name}/runs/vit", {**KEYS, "endpoint_url": served.endpoint})

    def raw_get(self, storage, key):
        return self.served.get(f"runs/vit/{key}")

    def raw_put(self, storage, key, data):
        self.served.put(f"runs/vit/{key}", data)


@pytest.mark.radosgw
class TestOnCeph(OnServer):
    @pytest.fixture
    def served(self, radosgw):
        yield from bucket_of(radosgw.endpoint)

    def test_conditions_are_honoured(self, storage, caplog):
        storage.probe()
        assert storage._has_conditions is True
        assert caplog.text == ""

    def test_wrong_keys_are_told_by_the_probe(self, served):
        for wrong in ({"key": "nobody"}, {"secret": "wrong"}):
            options = {**KEYS, "endpoint_url": served.endpoint, **wrong}
            with pytest.raises(StorageError, match=r"access key is unknown|does not belong to the access key"):
                open_storage(f"s3://{served.name}/runs/vit", options).probe()

    @pytest.mark.usefixtures("localhost_names")
    def test_obs_uses_virtual_hosted_addresses_on_request(self, served, radosgw):
        style = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
        root = open_storage(f"obs://{served.name}/obs", {**KEYS, **style, "endpoint_url": radosgw.virtual_endpoint})
        data = bytes(range(256)) * 50_000
        root.write("a/1", io.BytesIO(data), len(data))
        assert served.get("obs/a/1") == data


@pytest.mark.rclone
class TestOnRclone(OnServer):
    @pytest.fixture
    def served(self, rclone):
        yield from bucket_of(rclone.endpoint)

    def test_that_conditions_are_ignored_is_found_out(self, storage, caplog):
        storage.probe()
        assert storage._has_conditions is False
        assert "ignores If-None-Match" in caplog.text
