"""rclone's server is there and really ignores conditions: `pytest -n 0 -m rclone tests/unit/support/test_rclone.py`."""

from __future__ import annotations

import http.client

import pytest
from support.servers.client import s3_client
from support.servers.fixtures import Bucket
from support.servers.proxy import HOST

pytestmark = pytest.mark.rclone


@pytest.fixture
def files(rclone):
    client = s3_client(rclone.endpoint)
    made = Bucket("first", rclone.endpoint, client)
    client.create_bucket(Bucket=made.name)
    yield made
    made.delete()
    client.close()


def test_what_is_put_is_got_and_listed(files):
    data = bytes(range(256)) * 40_000
    files.put("a/b", data)
    assert files.get("a/b") == data
    assert files.get("a/c") is None
    assert files.keys() == ["a/b"]


def test_a_second_create_overwrites(files):
    for data in (b"1", b"2"):
        files.client.put_object(Bucket=files.name, Key="once", Body=data, IfNoneMatch="*")
        assert files.get("once") == data


def test_a_request_without_a_signature_is_refused(files, rclone):
    files.put("a", b"1")
    connection = http.client.HTTPConnection(HOST, rclone.port, timeout=30)
    connection.request("GET", f"/{files.name}/a")
    assert connection.getresponse().status == 400  # where S3 says 403
    connection.close()
