"""Ceph's gateway is there and does what the storage relies on: `pytest -n 0 -m radosgw tests/test_radosgw.py`."""

from __future__ import annotations

import http.client

import pytest
from botocore.exceptions import ClientError
from servers.client import s3_client
from servers.fixtures import Bucket

pytestmark = pytest.mark.radosgw


@pytest.fixture
def ceph(radosgw):
    client = s3_client(radosgw.endpoint)
    made = Bucket("first", radosgw.endpoint, client)
    client.create_bucket(Bucket=made.name)
    yield made
    made.delete()
    client.close()


def test_what_is_put_is_got_and_listed(ceph):
    data = bytes(range(256)) * 40_000
    ceph.put("a/b", data)
    assert ceph.get("a/b") == data
    assert ceph.get("a/c") is None
    assert ceph.keys() == ["a/b"]


def test_a_second_create_is_refused(ceph):
    ceph.client.put_object(Bucket=ceph.name, Key="once", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError) as caught:
        ceph.client.put_object(Bucket=ceph.name, Key="once", Body=b"2", IfNoneMatch="*")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert ceph.get("once") == b"1"


def test_a_request_without_a_signature_is_refused(ceph):
    ceph.put("a", b"1")
    connection = http.client.HTTPConnection("127.0.0.1", int(ceph.endpoint.rpartition(":")[2]), timeout=30)
    connection.request("GET", f"/{ceph.name}/a")
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.usefixtures("localhost_names")
def test_a_bucket_has_a_host_name(ceph, radosgw):
    ceph.put("a", b"1")
    client = s3_client(radosgw.virtual_endpoint, addressing_style="virtual")
    assert client.get_object(Bucket=ceph.name, Key="a")["Body"].read() == b"1"
    client.close()
