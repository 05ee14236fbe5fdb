"""Whatever a network does to any request: the call succeeds with the right bytes, or says that nothing is known."""

import contextlib
import errno
import io
import os
import threading
from datetime import timedelta
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError
from support.servers.faults import RequestFault
from unit.snapshot.live_copies import end_in_time

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage, written_stream

MIB = 1 << 20
PART = 5 * MIB
LARGE = bytes(range(256)) * (10 * MIB // 256) + b"rest"  # three parts
SMALL = b"some bytes"
BELOW = "runs/vit/"

PASSING = ["500", "503", "slow_down", "reset_before", "reset_mid_body", "reset_after", "truncate"]
HOPELESS = {"denied": "AccessDenied", "expired": "session token has expired", "quota": "quota is used up"}


def opened(proxy, bucket, **options):
    given = {"key": "testing", "secret": "testing", "endpoint_url": proxy.endpoint, "default_block_size": PART}
    return open_storage(f"s3://{bucket.name}/runs/vit", {**given, **options})


@pytest.fixture
def storage(proxy, bucket):
    made = opened(proxy, bucket, retry_for=timedelta(seconds=60))
    made._retry._wait = lambda seconds: None  # no real waiting
    made.probe()
    return made


def failed(write, match):
    with pytest.raises(StorageError, match=match) as caught:
        write()
    return caught.value


def refusing(operation, code="NoSuchUpload", status=404, before=lambda: None):
    def refuse(**_):
        before()
        raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)

    return refuse


def write_large(storage, key="a/1", data=LARGE):
    storage.write(key, io.BytesIO(data), len(LARGE))


def listed(storage, bucket):
    bucket.put(BELOW + "a/1", b"x")
    assert dict(storage.list("a").files) == {"1": 1}
    assert dict(storage.walk("a/")) == {"a/1": 1}


def read(storage, bucket):
    with pytest.raises(FileNotFoundError):
        storage.read("a/0", 100)
    bucket.put(BELOW + "a/1", SMALL)
    assert storage.read("a/1", 100) == SMALL


def read_large(storage, bucket):
    bucket.put(BELOW + "a/1", LARGE)
    first, second = bytearray(7), bytearray(len(LARGE))
    assert storage.read_into("a/1", [memoryview(first), memoryview(second)]) == len(LARGE)
    assert first + second[: len(LARGE) - 7] == LARGE


def written(storage, bucket):
    storage.write("a/1", io.BytesIO(SMALL), len(SMALL))
    assert bucket.get(BELOW + "a/1") == SMALL


def written_large(storage, bucket):
    write_large(storage)
    assert bucket.get(BELOW + "a/1") == LARGE


def created(storage, bucket):
    with contextlib.suppress(FileExistsError):  # its own, after a lost reply: the caller reads it back
        storage.create("a/1", SMALL)
    assert bucket.get(BELOW + "a/1") == SMALL


def deleted(storage, bucket):
    bucket.put(BELOW + "a/1", SMALL)
    storage.delete(["a/1", "a/2"])
    assert bucket.get(BELOW + "a/1") is None


def cleared(storage, bucket):
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key=BELOW + "a/1")
    assert storage.clear_unfinished("a/", lambda key: True) == 1
    assert bucket.uploads() == []


CALLS = [listed, read, read_large, written, written_large, created, deleted, cleared]


@pytest.mark.covering(1)
@pytest.mark.parametrize("call", CALLS, ids=[call.__name__ for call in CALLS])
@pytest.mark.parametrize("action", PASSING)
def test_trouble_that_passes_at_any_request_changes_nothing(action, call, storage, proxy, bucket):
    before = len(proxy.requests)
    call(storage, bucket)
    fired = 0
    for nth in range(1, len(proxy.requests) - before + 1):
        for key in bucket.keys():  # noqa: SIM118 - of a bucket
            if not key.endswith("/probe"):
                bucket.client.delete_object(Bucket=bucket.name, Key=key)
        fault = proxy.inject(RequestFault(action, nth=nth))
        call(storage, bucket)
        fired += fault.fired
        proxy.clear()
    assert fired >= (action != "truncate" or call in (listed, read, read_large))


@pytest.mark.parametrize(("action", "call"), [("stall_body", read_large), ("stall_request", created)])
def test_silent_server_is_asked_again(action, call, proxy, bucket):
    storage = opened(proxy, bucket, request_timeout=timedelta(seconds=1), retry_for=timedelta(seconds=60))
    storage.probe()
    fault = proxy.inject(RequestFault(action))
    call(storage, bucket)
    assert fault.fired == 1


@pytest.mark.parametrize("action", HOPELESS)
def test_permanent_failure_is_reported_at_once(action, storage, proxy, bucket):
    for call in CALLS:
        proxy.clear()
        fault, before = proxy.inject(RequestFault(action, times=None)), len(proxy.requests)
        failed(lambda call=call: call(storage, bucket), HOPELESS[action])
        assert fault.fired >= 1, call
        assert len(proxy.requests) - before <= 4, call  # lanes that were on their way; none of them twice


def test_lost_completion_reply_is_settled_by_token(storage, proxy, bucket):
    fault = proxy.inject(RequestFault("reset_after", method="POST", path="*uploadId=*"))
    written_large(storage, bucket)
    assert (fault.fired, bucket.uploads()) == (1, [])


@pytest.mark.parametrize(
    ("operation", "other"),
    [("upload_part", None), ("complete_multipart_upload", None), ("complete_multipart_upload", b"other")],
)
def test_upload_cleared_by_later_attempt_is_error(operation, other, storage, bucket, monkeypatch):
    """Also if the key holds other bytes by then: they are not taken for its own."""
    put = lambda: other and bucket.put(BELOW + "a/1", other)  # noqa: E731
    monkeypatch.setattr(storage._client.api, operation, refusing(operation, before=put))
    failed(lambda: write_large(storage), "its upload no longer exists")
    assert bucket.get(BELOW + "a/1") == other
    assert bucket.uploads() == []


def test_parts_that_fail_together_end_the_write(storage, bucket, monkeypatch):
    """Each gives its memory back: who fills the next part waits for that, and would for ever."""
    together = threading.Barrier(4)  # as many as are on their way at once
    denied = refusing("UploadPart", "AccessDenied", 403, lambda: together.wait(60))
    monkeypatch.setattr(storage._client.api, "upload_part", denied)
    write = lambda: storage.write("a/1", io.BytesIO(bytes(9 * PART)), 9 * PART)  # noqa: E731
    end_in_time(lambda: failed(write, "could not write part"))
    assert bucket.uploads() == []


def test_an_interpreter_that_ends_waits_for_no_server(storage, bucket, monkeypatch):
    """What an interrupted upload leaves is a later start's to clear."""
    interrupted = Mock(readinto=Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(storage, "_abort", lambda *_: pytest.fail("it asks the server"))
    with pytest.raises(KeyboardInterrupt):
        storage.write("a/1", interrupted, len(LARGE))
    assert bucket.uploads() == [BELOW + "a/1"]


def test_an_upload_that_fails_leaves_neither_parts_nor_lost_buffers(storage, bucket, monkeypatch):
    made = []

    def touched(size_bytes):
        if len(made) == 3:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        made.append(size_bytes)
        return memoryview(bytearray(PART))

    monkeypatch.setattr(written_stream, "touched", touched)
    for key in ("a/1", "a/2"):
        failed(lambda key=key: write_large(storage, key, LARGE[:-1]), "announced")
        assert bucket.get(BELOW + key) is None
    storage._memory._free.clear()
    failed(lambda: write_large(storage), "Cannot allocate memory")
    assert (made, bucket.uploads()) == ([PART] * 3, [])


def test_leftovers_of_uploads_are_cleared_by_later_start(storage, proxy, bucket, caplog):
    """Of one whose id was lost, without parts, and of one that could not be aborted."""
    fault = proxy.inject(RequestFault("reset_after", method="POST", path="*uploads*"))
    write_large(storage)
    assert (fault.fired, bucket.uploads()) == (1, [BELOW + "a/1"])
    assert storage.clear_unfinished("a/", lambda key: True) == 1
    fault = proxy.inject(RequestFault("denied", method="DELETE"))
    failed(lambda: write_large(storage, "checkpoints/a000002-x/1", LARGE[:-1]), "announced")
    assert fault.fired == 1
    assert "a later start will" in caplog.text
    assert bucket.uploads() == [BELOW + "checkpoints/a000002-x/1"]
    assert storage.clear_unfinished("checkpoints/", lambda key: "a000001" in key) == 0
    assert storage.clear_unfinished("frozen/", lambda key: True) == 0
    assert storage.clear_unfinished("checkpoints/", lambda key: "a000002" in key) == 1
    assert bucket.uploads() == []


def test_expired_keys_are_requested_anew(proxy, bucket):
    given = []
    keys = lambda: given.append(f"token-{len(given)}") or {"key": "testing", "secret": "testing", "token": given[-1]}  # noqa: E731
    storage = opened(proxy, bucket, key=None, secret=None, credentials=keys)
    storage._retry._wait = lambda seconds: None
    fault = proxy.inject(RequestFault("expired", times=2))
    written(storage, bucket)
    assert (fault.fired, len(given)) == (2, 3)
