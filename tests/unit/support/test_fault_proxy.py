"""Every fault of the proxy does what it says, on the server too, and counts; without one, it changes nothing."""

import random
import socket

import pytest
from botocore.exceptions import ClientError
from support.servers.client import s3_client
from support.servers.faults import REFUSALS, RequestFault
from support.servers.proxy import HOST

DATA = random.Random(1).randbytes(300_001)
# moto shows objects to somebody only, but to anybody who claims to be.
SIGNATURE = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


@pytest.fixture
def s3(proxy):
    client = s3_client(proxy.endpoint)
    yield client
    client.close()


@pytest.fixture
def client(proxy):
    """A connection through the proxy, without anything that could retry."""
    with socket.create_connection((HOST, proxy.port), timeout=30) as connection:
        yield connection


@pytest.fixture
def put_request(bucket):
    return f"PUT /{bucket.name}/a HTTP/1.1\r\nHost: x\r\nContent-Length: {len(DATA)}\r\n\r\n".encode() + DATA


@pytest.fixture
def get_request(bucket):
    return f"GET /{bucket.name}/a HTTP/1.1\r\nHost: x\r\nAuthorization: {SIGNATURE}\r\n\r\n".encode()


def assert_reset(connection):
    """It is a reset, and not an end or an answer."""
    with pytest.raises(ConnectionResetError):
        b"".join(iter(lambda: connection.recv(1 << 20), b""))


def test_refusal_answers_s3_error_and_stores_nothing(s3, bucket, proxy):
    for action, refusal in REFUSALS.items():
        fault = proxy.inject(RequestFault(action, method="PUT"))
        with pytest.raises(ClientError) as caught:
            s3.put_object(Bucket=bucket.name, Key=action, Body=DATA)
        answer = caught.value.response
        said = (answer["Error"]["Code"], answer["Error"]["Message"], answer["ResponseMetadata"]["HTTPStatusCode"])
        assert said == (refusal.code, refusal.message, int(refusal.status[:3]))
        assert bucket.get(action) is None
        s3.put_object(Bucket=bucket.name, Key=action, Body=DATA)
        assert bucket.get(action) == DATA
        assert fault.fired == 1
        assert [request.action for request in proxy.requests[-2:]] == [action, None]


@pytest.mark.parametrize("action", ["reset_before", "reset_mid_body", "reset_after"])
def test_a_reset_before_in_and_after_what_is_done(client, bucket, proxy, action, put_request):
    fault = proxy.inject(RequestFault(action, method="PUT"))
    client.sendall(put_request)
    assert_reset(client)
    assert bucket.get("a") == (DATA if action == "reset_after" else None)
    assert fault.fired == 1


def test_proxy_down_refuses_and_up_keeps_port(s3, client, bucket, proxy, get_request):
    bucket.put("a", DATA)
    port = proxy.port
    client.sendall(get_request)
    assert client.recv(1)
    proxy.down()
    assert_reset(client)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=30)
    proxy.down()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind((HOST, port))
    proxy.up()
    proxy.up()
    assert proxy.port == port
    assert s3.get_object(Bucket=bucket.name, Key="a")["Body"].read() == DATA
