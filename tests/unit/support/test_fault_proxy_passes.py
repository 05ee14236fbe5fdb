"""Without faults the proxy changes nothing, whatever a client or a server may do in HTTP/1.1."""

from __future__ import annotations

import http.client
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from botocore.exceptions import ClientError
from support.servers.client import s3_client
from support.servers.proxy import HOST, FaultProxy

MIB = 1 << 20
# moto shows objects to somebody only, but to anybody who claims to be.
SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0"
}


@pytest.fixture
def s3(proxy):
    client = s3_client(proxy.endpoint)
    yield client
    client.close()


@pytest.fixture
def http_client(proxy):
    connection = http.client.HTTPConnection(HOST, proxy.port, timeout=30)
    yield connection
    connection.close()


@contextmanager
def server_that(*, hears, says):
    """A server for one connection, which ends it after ``says``; yields its port and what it heard.

    Args:
        hears: Answers when what it heard ends in this.
        says: The answer.
    """
    heard = bytearray()
    with socket.create_server((HOST, 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                while not heard.endswith(hears) and (data := connection.recv(MIB)):
                    heard.extend(data)
                connection.sendall(says)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(MIB):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        thread.join(30)
        assert not thread.is_alive()


def spoken(proxy, request):
    """Everything that is answered to ``request`` until the connection ends."""
    with socket.create_connection((HOST, proxy.port), timeout=30) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(MIB), b""))


def test_a_multipart_upload_and_ranges(s3, bucket, proxy):
    data = random.Random(3).randbytes(12 * MIB)
    upload = s3.create_multipart_upload(Bucket=bucket.name, Key="big")["UploadId"]
    parts = []
    for number, at in enumerate(range(0, len(data), 5 * MIB), start=1):
        body = data[at : at + 5 * MIB]
        answer = s3.upload_part(Bucket=bucket.name, Key="big", UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    assert bucket.uploads() == ["big"]
    s3.complete_multipart_upload(Bucket=bucket.name, Key="big", UploadId=upload, MultipartUpload={"Parts": parts})
    assert bucket.uploads() == []
    assert bucket.get("big") == data
    assert s3.get_object(Bucket=bucket.name, Key="big")["Body"].read() == data
    for first, last in [(0, 0), (MIB - 1, 7 * MIB), (12 * MIB - 1, 12 * MIB - 1)]:
        answer = s3.get_object(Bucket=bucket.name, Key="big", Range=f"bytes={first}-{last}")
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert answer["Body"].read() == data[first : last + 1]
    assert [request.method for request in proxy.requests] == ["POST", "PUT", "PUT", "PUT", "POST", *["GET"] * 4]
    assert proxy.requests[-1].headers["range"] == f"bytes={12 * MIB - 1}-{12 * MIB - 1}"


def test_pages_of_a_listing_and_strange_keys(s3, bucket, proxy):
    keys = sorted([f"a/{number:02}" for number in range(11)] + ["b c/ä+&=?#", "b c/%20"])
    for key in keys:
        s3.put_object(Bucket=bucket.name, Key=key, Body=key.encode())
    pages = list(s3.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, PaginationConfig={"PageSize": 5}))
    assert [len(page["Contents"]) for page in pages] == [5, 5, 3]
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == keys == bucket.keys()
    folders = s3.list_objects_v2(Bucket=bucket.name, Delimiter="/")["CommonPrefixes"]
    assert [folder["Prefix"] for folder in folders] == ["a/", "b c/"]
    assert bucket.get(keys[-1]) == keys[-1].encode()
    assert "delimiter=%2F" in proxy.requests[-1].query
    assert proxy.requests[-1].path == f"/{bucket.name}"
    s3.delete_objects(Bucket=bucket.name, Delete={"Objects": [{"Key": key} for key in keys]})
    assert bucket.keys() == []


def test_errors_are_the_servers(s3, bucket):
    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket=bucket.name, Key="missing")
    s3.put_object(Bucket=bucket.name, Key="once", Body=b"1", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket.name, Key="once", Body=b"2", IfNoneMatch="*")
    assert bucket.get("once") == b"1"


def test_a_server_that_ignores_conditions(s3, bucket, proxy):
    proxy.without_conditions = True
    for data in (b"1", b"2"):
        s3.put_object(Bucket=bucket.name, Key="once", Body=data, IfNoneMatch="*")
        s3.put_object(Bucket=bucket.name, Key="once", Body=data, IfMatch='"0123"')
        assert bucket.get("once") == data
    assert proxy.requests[0].headers["if-none-match"] == "*"
    proxy.without_conditions = False
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket.name, Key="once", Body=b"3", IfNoneMatch="*")


def test_answer_without_body_keeps_connection(http_client, bucket):
    bucket.put("a", b"12345")
    bucket.put("b", b"")

    def ask(method, key, **headers):
        http_client.request(method, f"/{bucket.name}/{key}", headers={**SIGNED, **headers})
        answer = http_client.getresponse()
        return answer, answer.read()

    answer, body = ask("HEAD", "a")
    assert (answer.status, answer.headers["Content-Length"], body) == (200, "5", b"")
    first = http_client.sock
    assert ask("GET", "a", **{"If-None-Match": answer.headers["ETag"]})[0].status == 304
    assert ask("GET", "b")[1] == b""
    assert ask("DELETE", "b")[0].status == 204
    assert ask("GET", "b")[0].status == 404
    assert ask("GET", "a")[1] == b"12345"
    assert http_client.sock is first


def test_a_body_sent_in_chunks(http_client, bucket):
    pieces = [bytes([number]) * 70_000 for number in range(5)]
    http_client.request("PUT", f"/{bucket.name}/a", body=iter(pieces), headers=SIGNED, encode_chunked=True)
    answer = http_client.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    assert bucket.get("a") == b"".join(pieces)


def test_a_client_is_told_once_to_continue(bucket, proxy):
    """moto says it twice, which `http.client` and botocore bear, and others take for the answer."""
    head = f"PUT /{bucket.name}/a HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with socket.create_connection((HOST, proxy.port), timeout=30) as client:
        client.sendall(head.encode())
        assert client.recv(MIB) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"abc")
        said = b"".join(iter(lambda: client.recv(MIB), b""))
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.count(b"HTTP/1.1") == 1
    assert bucket.get("a") == b"abc"


def test_chunked_answer_is_passed_unchanged():
    says = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"
    with (
        server_that(hears=b"\r\n\r\n", says=says) as (port, heard),
        FaultProxy(HOST, port) as proxy,
        socket.create_connection((HOST, proxy.port), timeout=30) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nx-one: 1\r\nX-Two: b\r\n\r\n")
        said = b""
        while len(said) < len(says):
            said += client.recv(MIB)
    assert said == says
    assert bytes(heard) == b"GET / HTTP/1.1\r\nx-one: 1\r\nX-Two: b\r\nConnection: close\r\n\r\n"


def test_an_answer_that_ends_with_the_connection():
    with (
        server_that(hears=b"\r\n\r\n", says=b"HTTP/1.1 200 OK\r\n\r\nabc") as (port, _),
        FaultProxy(HOST, port) as proxy,
    ):
        assert spoken(proxy, b"GET / HTTP/1.1\r\n\r\n") == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"


def test_truncated_answer_is_truncated_for_client():
    says = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
    with server_that(hears=b"\r\n\r\n", says=says) as (port, _), FaultProxy(HOST, port) as proxy:
        assert spoken(proxy, b"GET / HTTP/1.1\r\n\r\n") == says


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"])
def test_early_answer_is_passed_at_once(expect):
    """The server answers before the client has sent its body."""
    says = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
    with (
        server_that(hears=b"\r\n\r\n", says=says) as (port, _),
        FaultProxy(HOST, port) as proxy,
        socket.create_connection((HOST, proxy.port), timeout=30) as client,
    ):
        client.sendall(f"PUT / HTTP/1.1\r\nContent-Length: {MIB}\r\n{expect}\r\n".encode())
        said = b"".join(iter(lambda: client.recv(MIB), b""))
        client.sendall(bytes(MIB))  # by a client that looks only later
    assert said == b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"


def test_server_sees_client_leave_mid_body():
    with socket.create_server((HOST, 0)) as listener, FaultProxy(HOST, listener.getsockname()[1]) as proxy:
        listener.settimeout(30)
        with socket.create_connection((HOST, proxy.port), timeout=30) as client:
            client.sendall(b"PUT / HTTP/1.1\r\nContent-Length: 6\r\n\r\nabc")
            server, _ = listener.accept()
        with server:
            server.settimeout(30)
            heard = b"".join(iter(lambda: server.recv(MIB), b""))
    assert heard.endswith(b"\r\n\r\nabc") or heard.endswith(b"\r\n\r\n")


def test_a_server_that_is_gone_resets():
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))
        with FaultProxy(HOST, nobody.getsockname()[1]) as proxy, pytest.raises(ConnectionResetError):
            spoken(proxy, b"GET / HTTP/1.1\r\n\r\n")


def test_an_old_client_gets_one_answer(bucket, proxy):
    bucket.put("a", b"12345")
    head = f"GET /{bucket.name}/a HTTP/1.0\r\nHost: x\r\nAuthorization: {SIGNED['Authorization']}\r\n\r\n"
    assert spoken(proxy, head.encode()).endswith(b"Connection: close\r\n\r\n12345")


def test_eight_threads_at_once(s3, bucket, proxy):
    data = [random.Random(seed).randbytes(MIB + seed) for seed in range(8)]

    def work(seed):
        for number in range(3):
            key = f"{seed}/{number}"
            s3.put_object(Bucket=bucket.name, Key=key, Body=data[seed])
            assert s3.get_object(Bucket=bucket.name, Key=key)["Body"].read() == data[seed]
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    assert len(proxy.requests) == 48
    assert all(bucket.get(f"{seed}/2") == data[seed] for seed in range(8))
