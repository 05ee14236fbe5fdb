"""Ceph's gateway is there and does what the storage relies on.

`pytest -n 0 -m radosgw tests/unit/support/test_radosgw.py` runs it.
"""

from __future__ import annotations

import http.client

import pytest
from botocore.exceptions import ClientError, HTTPClientError
from support.servers.client import s3_client
from support.servers.faults import RequestFault
from support.servers.fixtures import Bucket
from support.servers.proxy import HOST, FaultProxy

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


def test_a_request_without_a_signature_is_refused(ceph, radosgw):
    ceph.put("a", b"1")
    connection = http.client.HTTPConnection(HOST, radosgw.port, timeout=30)
    connection.request("GET", f"/{ceph.name}/a")
    assert connection.getresponse().status == 403
    connection.close()


def test_the_proxy_keeps_signatures_whole(ceph, radosgw):
    data = bytes(range(256)) * 40_000
    with FaultProxy(HOST, radosgw.port) as proxy:
        client = s3_client(proxy.endpoint)
        client.put_object(Bucket=ceph.name, Key="a", Body=data)
        assert client.get_object(Bucket=ceph.name, Key="a")["Body"].read() == data
        lost = proxy.inject(RequestFault("reset_after", method="PUT"))
        with pytest.raises(HTTPClientError):
            client.put_object(Bucket=ceph.name, Key="lost", Body=data)
        client.close()
    assert lost.fired == 1
    assert ceph.get("lost") == data


@pytest.mark.usefixtures("localhost_names")
def test_a_bucket_has_a_host_name(ceph, radosgw):
    ceph.put("a", b"1")
    client = s3_client(radosgw.virtual_endpoint, addressing_style="virtual")
    assert client.get_object(Bucket=ceph.name, Key="a")["Body"].read() == b"1"
    client.close()
