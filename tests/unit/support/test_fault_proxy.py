"""Every fault of the proxy does what it says, on the server too, and counts; so does going down."""

from __future__ import annotations

import http.client
import random
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError, HTTPClientError, ResponseStreamingError
from support.servers.client import s3_client
from support.servers.faults import REFUSALS, RequestFault
from support.servers.proxy import HOST, FaultProxy

MIB = 1 << 20
DATA = random.Random(1).randbytes(300_001)
SHORT = timedelta(milliseconds=1)
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
def aside():
    """Runs calls in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def put_request(bucket, data=DATA, key="a"):
    return b"PUT /%s/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        bucket.name.encode(),
        key.encode(),
        len(data),
        data,
    )


def get_request(bucket, key="a"):
    return f"GET /{bucket.name}/{key} HTTP/1.1\r\nHost: x\r\nAuthorization: {SIGNATURE}\r\n\r\n".encode()


def assert_reset(connection):
    """It is a reset, and not an end or an answer."""
    with pytest.raises(ConnectionResetError):
        b"".join(iter(lambda: connection.recv(MIB), b""))


@pytest.mark.parametrize("action", sorted(REFUSALS))
def test_refusal_answers_s3_error_and_stores_nothing(s3, bucket, proxy, action):
    fault = proxy.inject(RequestFault(action, method="PUT"))
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket=bucket.name, Key="a", Body=DATA)
    answer = caught.value.response
    assert answer["Error"]["Code"] == REFUSALS[action].code
    assert answer["Error"]["Message"] == REFUSALS[action].message
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == int(REFUSALS[action].status[:3])
    assert bucket.get("a") is None
    s3.put_object(Bucket=bucket.name, Key="a", Body=DATA)
    assert bucket.get("a") == DATA
    assert fault.fired == 1
    assert [request.action for request in proxy.requests] == [action, None]


def test_a_refused_head_has_no_body(client, proxy):
    proxy.inject(RequestFault("slow_down", method="HEAD"))
    client.sendall(b"HEAD /b/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    said = b"".join(iter(lambda: client.recv(MIB), b""))
    assert said.startswith(b"HTTP/1.1 503 Slow Down\r\n")
    assert said.endswith(b"\r\n\r\n")


def test_refusal_keeps_connection_usable(client, bucket, proxy):
    bucket.put("a", b"12345")
    proxy.inject(RequestFault("500"))
    client.sendall(put_request(bucket) + get_request(bucket))
    said = b""
    while not said.endswith(b"12345"):
        said += client.recv(MIB)
    assert said.startswith(b"HTTP/1.1 500 ")


def test_reset_before_anything_is_done(client, bucket, proxy):
    fault = proxy.inject(RequestFault("reset_before", method="PUT"))
    client.sendall(put_request(bucket, b"small"))
    assert_reset(client)
    assert bucket.get("a") is None
    assert fault.fired == 1


@pytest.mark.parametrize("size_bytes", [5, 8 * MIB])
def test_reset_in_the_middle_of_a_body(s3, bucket, proxy, size_bytes):
    fault = proxy.inject(RequestFault("reset_mid_body", method="PUT"))
    with pytest.raises(HTTPClientError):
        s3.put_object(Bucket=bucket.name, Key="a", Body=bytes(size_bytes))
    assert bucket.keys() == []
    assert fault.fired == 1


def test_reset_in_the_middle_of_chunks(client, bucket, proxy):
    fault = proxy.inject(RequestFault("reset_mid_body"))
    client.sendall(b"PUT /%s/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" % bucket.name.encode())
    assert_reset(client)
    assert bucket.keys() == []
    assert fault.fired == 1


def test_reset_after_a_put_that_was_done(client, bucket, proxy):
    fault = proxy.inject(RequestFault("reset_after", method="PUT"))
    client.sendall(put_request(bucket))
    assert_reset(client)
    assert bucket.get("a") == DATA
    assert fault.fired == 1


def test_error_answer_can_be_lost(client, bucket, proxy):
    fault = proxy.inject(RequestFault("reset_after"))
    client.sendall(get_request(bucket, "missing"))
    assert_reset(client)
    assert fault.fired == 1


def test_a_truncated_answer(s3, bucket, proxy):
    bucket.put("a", DATA)
    fault = proxy.inject(RequestFault("truncate", method="GET"))
    connection = http.client.HTTPConnection(HOST, proxy.port, timeout=30)
    connection.request("GET", f"/{bucket.name}/a", headers={"Authorization": SIGNATURE})
    with pytest.raises(http.client.IncompleteRead) as caught:
        connection.getresponse().read()
    assert caught.value.partial == DATA[: len(DATA) // 2]
    connection.close()
    proxy.inject(RequestFault("truncate", method="GET"))
    with pytest.raises(ResponseStreamingError):
        s3.get_object(Bucket=bucket.name, Key="a")["Body"].read()
    assert fault.fired == 1


@pytest.mark.parametrize("action", ["truncate", "stall_body"])
def test_an_answer_without_a_body_cannot_be_halved(s3, bucket, proxy, action):
    bucket.put("a", DATA)
    fault = proxy.inject(RequestFault(action))
    assert s3.head_object(Bucket=bucket.name, Key="a")["ContentLength"] == len(DATA)
    assert fault.fired == 0


def test_a_stalled_request_reaches_the_server_when_released(s3, bucket, proxy, aside):
    fault = proxy.inject(RequestFault("stall_request", method="PUT"))
    put = aside.submit(s3.put_object, Bucket=bucket.name, Key="a", Body=DATA)
    proxy.wait_stalled()
    assert bucket.get("a") is None
    assert not put.done()
    proxy.release()
    put.result(30)
    assert bucket.get("a") == DATA
    assert fault.fired == 1


def test_a_stalled_request_is_not_read(client, bucket, proxy):
    proxy.inject(RequestFault("stall_request"))
    client.sendall(b"PUT /%s/a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (bucket.name.encode(), 64 * MIB))
    proxy.wait_stalled()
    sent_bytes = 0
    while select.select([], [client], [], 0.5)[1]:
        sent_bytes += client.send(bytes(MIB))
        assert sent_bytes < 32 * MIB


@pytest.mark.parametrize("how", [socket.SHUT_RDWR, None])
def test_a_stalled_request_ends_when_the_client_leaves(client, bucket, proxy, how):
    fault = proxy.inject(RequestFault("stall_request"))
    client.sendall(put_request(bucket))
    proxy.wait_stalled()
    if how is not None:
        client.shutdown(how)
    client.close()
    proxy.wait_unstalled()
    assert bucket.keys() == []
    assert fault.fired == 1


def test_client_timeout_ends_stalled_request(bucket, proxy):
    """What botocore does at its deadline; here that is one which has passed as soon as it begins."""
    proxy.inject(RequestFault("stall_request"))
    impatient = s3_client(proxy.endpoint, read_timeout=0.01)
    with pytest.raises(HTTPClientError, match="timeout"):
        impatient.get_object(Bucket=bucket.name, Key="a")
    impatient.close()
    proxy.wait_unstalled()


def test_a_stalled_answer_goes_on_when_released(s3, bucket, proxy):
    bucket.put("a", DATA)
    fault = proxy.inject(RequestFault("stall_body"))
    body = s3.get_object(Bucket=bucket.name, Key="a")["Body"]
    half = len(DATA) // 2
    first = body.read(half)
    proxy.wait_stalled()
    proxy.release()
    assert first + body.read() == DATA
    assert fault.fired == 1


def test_a_stalled_answer_ends_when_the_client_leaves(client, bucket, proxy):
    bucket.put("a", DATA)
    proxy.inject(RequestFault("stall_body"))
    client.sendall(get_request(bucket))
    proxy.wait_stalled()
    client.close()
    proxy.wait_unstalled()


def test_waiting_for_a_stall_has_an_end(proxy):
    with pytest.raises(TimeoutError, match="0 requests are stalled, not 1"):
        proxy.wait_stalled(timeout=SHORT)


def test_wait_for_unstalled_times_out(client, bucket, proxy):
    proxy.inject(RequestFault("stall_request"))
    client.sendall(get_request(bucket))
    proxy.wait_stalled()
    with pytest.raises(TimeoutError, match="1 requests are still stalled"):
        proxy.wait_unstalled(SHORT)


def test_of_two_faults_the_first_one_happens(s3, bucket, proxy):
    first = proxy.inject(RequestFault("500"))
    second = proxy.inject(RequestFault("503"))
    with pytest.raises(ClientError, match="InternalError"):
        s3.get_object(Bucket=bucket.name, Key="a")
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket=bucket.name, Key="a")
    assert (first.fired, second.fired) == (1, 0)


def test_no_fault_is_left_after_clear(s3, bucket, proxy):
    fault = proxy.inject(RequestFault("500", times=None))
    proxy.clear()
    s3.put_object(Bucket=bucket.name, Key="a", Body=b"")
    assert fault.fired == 0


def test_proxy_down_refuses_and_up_keeps_port(s3, client, bucket, proxy):
    bucket.put("a", DATA)
    port = proxy.port
    client.sendall(get_request(bucket))
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


def test_down_resets_what_is_stalled(client, bucket, proxy):
    proxy.inject(RequestFault("stall_request"))
    client.sendall(put_request(bucket))
    proxy.wait_stalled()
    proxy.down()
    assert_reset(client)
    proxy.wait_unstalled(SHORT)
    assert bucket.keys() == []


def test_down_and_up_under_load(bucket, proxy):
    """A connection that comes while the proxy goes down is reset or refused, never left hanging."""
    over = threading.Event()

    def ask() -> int:
        answered = 0
        while not over.is_set():
            connection = http.client.HTTPConnection(HOST, proxy.port, timeout=30)
            try:
                connection.request("HEAD", f"/{bucket.name}")
                answered += connection.getresponse().status == 200
            except (ConnectionError, http.client.HTTPException):
                pass
            finally:
                connection.close()
        return answered

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        for _ in range(20):
            proxy.down()
            proxy.up()
            seen = len(proxy.requests)
            while len(proxy.requests) == seen:
                connection = http.client.HTTPConnection(HOST, proxy.port, timeout=30)
                connection.request("HEAD", f"/{bucket.name}")
                assert connection.getresponse().status == 200
                connection.close()
        over.set()
        assert sum(each.result(30) for each in asking) > 0


def test_eight_threads_through_faults(s3, bucket, proxy):
    rng = random.Random(7)
    faults = [
        proxy.inject(RequestFault(action, times=None, probability=0.1, rng=rng))
        for action in ("503", "reset_before", "reset_mid_body", "reset_after", "truncate")
    ]

    def put(key, data):
        s3.put_object(Bucket=bucket.name, Key=key, Body=data)

    def get(key):
        return s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()

    def until_done(call, *arguments):
        while True:
            try:
                return call(*arguments)
            except (ClientError, HTTPClientError):
                pass

    def work(thread):
        for number in range(8):
            data = bytes([thread]) * (50_000 + number)
            until_done(put, f"{thread}/{number}", data)
            assert until_done(get, f"{thread}/{number}") == data

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(bucket.keys()) == 64
    assert all(bucket.get(f"{thread}/3") == bytes([thread]) * 50_003 for thread in range(8))
    assert all(fault.fired for fault in faults)
    struck = [request for request in proxy.requests if request.action not in (None, "truncate")]
    assert len(struck) == sum(fault.fired for fault in faults if fault.action != "truncate")


def test_a_mistake_of_the_proxy_is_shown(moto):
    proxy = FaultProxy(HOST, moto.port).start()
    with socket.create_connection((HOST, proxy.port), timeout=30) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(1) == b""
    with pytest.raises(AssertionError, match="the proxy is wrong"):
        proxy.stop()
