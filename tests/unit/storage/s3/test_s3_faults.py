"""Whatever a network does to any request: the call succeeds with the right bytes, or says that nothing is known."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import threading
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError
from support.servers.faults import RequestFault

from ckptkit.errors import StorageError
from ckptkit.storage import open_storage, source

MIB = 1 << 20
PART = 5 * MIB
LARGE = bytes(range(256)) * (12 * MIB // 256) + b"rest"
SMALL = b"some bytes"
BELOW = "runs/vit/"

PASSING = ["500", "503", "slow_down", "reset_before", "reset_mid_body", "reset_after", "truncate"]
STALLS = ["stall_request", "stall_body"]
HOPELESS = {"denied": "AccessDenied", "expired": "session token has expired", "quota": "quota is used up"}


def opened(proxy, bucket, **options):
    given = {"key": "testing", "secret": "testing", "endpoint_url": proxy.endpoint, "default_block_size": PART}
    return open_storage(f"s3://{bucket.name}/runs/vit", {**given, **options})


@pytest.fixture
def storage(proxy, bucket):
    made = opened(proxy, bucket, retry_for=timedelta(seconds=60))
    made.probe()
    return made


def listed(storage, bucket):
    bucket.put(BELOW + "a/1", b"x")
    assert dict(storage.list("a").files) == {"1": 1}


def walked(storage, bucket):
    bucket.put(BELOW + "a/b/1", b"x")
    assert dict(storage.walk("a/")) == {"a/b/1": 1}


def read(storage, bucket):
    bucket.put(BELOW + "a/1", SMALL)
    assert storage.read("a/1", 100) == SMALL


def read_large(storage, bucket):
    bucket.put(BELOW + "a/1", LARGE)
    first, second = bytearray(7), bytearray(len(LARGE))
    assert storage.read_into("a/1", [memoryview(first), memoryview(second)]) == len(LARGE)
    assert first + second[: len(LARGE) - 7] == LARGE


def absent(storage, bucket):
    with pytest.raises(FileNotFoundError):
        storage.read("a/1", 100)


def written(storage, bucket):
    storage.write("a/1", io.BytesIO(SMALL), len(SMALL))
    assert bucket.get(BELOW + "a/1") == SMALL


def written_large(storage, bucket):
    storage.write("a/1", io.BytesIO(LARGE), len(LARGE))
    assert bucket.get(BELOW + "a/1") == LARGE
    assert bucket.uploads() == []


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


CALLS = [listed, walked, read, read_large, absent, written, written_large, created, deleted, cleared]


@pytest.mark.covering(1)
@pytest.mark.parametrize("call", CALLS, ids=[call.__name__ for call in CALLS])
@pytest.mark.parametrize("action", PASSING)
def test_trouble_that_passes_at_any_request_changes_nothing(action, call, storage, proxy, bucket):
    before = len(proxy.requests)
    call(storage, bucket)
    requests = len(proxy.requests) - before
    assert requests >= 1
    fired = 0
    for nth in range(1, requests + 1):
        for key in bucket.keys():  # noqa: SIM118 - of a bucket
            if not key.endswith("/probe"):
                bucket.client.delete_object(Bucket=bucket.name, Key=key)
        fault = proxy.inject(RequestFault(action, nth=nth))
        call(storage, bucket)
        fired += fault.fired
        proxy.clear()
    assert fired >= (1 if action != "truncate" or call in (listed, walked, read, read_large) else 0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("action", STALLS)
@pytest.mark.parametrize(
    "call",
    [
        read_large,
        created,
        *(pytest.param(call, marks=pytest.mark.extended) for call in (listed, written, written_large)),
    ],
    ids=lambda call: call.__name__,
)
def test_silent_server_is_asked_again(action, call, proxy, bucket):
    if action == "stall_body" and call not in (listed, read_large):
        action = "stall_request"
    storage = opened(proxy, bucket, request_timeout=timedelta(seconds=1), retry_for=timedelta(seconds=60))
    storage.probe()
    fault = proxy.inject(RequestFault(action))
    call(storage, bucket)
    assert fault.fired == 1


def test_three_failures_in_a_row_are_made_good(storage, proxy, bucket):
    fault = proxy.inject(RequestFault("slow_down", times=3))
    written_large(storage, bucket)
    assert fault.fired == 3


@pytest.mark.covering(1)
@pytest.mark.parametrize("action", HOPELESS)
@pytest.mark.parametrize("call", CALLS, ids=[call.__name__ for call in CALLS])
def test_permanent_failure_is_reported_at_once(action, call, storage, proxy, bucket):
    """The error says what to do."""
    fault = proxy.inject(RequestFault(action, times=None))
    before = len(proxy.requests)
    with pytest.raises(StorageError, match=HOPELESS[action]):
        call(storage, bucket)
    assert fault.fired >= 1
    assert len(proxy.requests) - before <= 4  # lanes that were on their way; none of them twice


def test_probe_reports_missing_bucket(proxy, bucket):
    storage = open_storage("s3://no-such-bucket/runs", {"key": "a", "secret": "b", "endpoint_url": proxy.endpoint})
    with pytest.raises(StorageError, match="There is no such bucket"):
        storage.probe()
    with pytest.raises(StorageError, match="There is no such bucket"):
        storage.list("checkpoints")
    with pytest.raises(StorageError, match="There is no such bucket"):
        storage.read("run.json", 10)


def test_patience_ends_with_what_went_wrong(proxy, bucket):
    storage = opened(proxy, bucket, retry_for=timedelta(seconds=1))
    proxy.inject(RequestFault("503", times=None))
    with pytest.raises(StorageError, match=r"ServiceUnavailable.*tried [0-9]+ times") as raised:
        storage.read("a/1", 10)
    assert raised.value.__cause__ is not None


def test_lost_put_reply_reports_existing_own_file(storage, proxy, bucket):
    fault = proxy.inject(RequestFault("reset_after", method="PUT"))
    with pytest.raises(FileExistsError):
        storage.create("a/1", SMALL)
    assert fault.fired == 1
    assert bucket.get(BELOW + "a/1") == SMALL


def test_lost_completion_reply_is_settled_by_token(storage, proxy, bucket):
    fault = proxy.inject(RequestFault("reset_after", method="POST", path="*uploadId=*"))
    written_large(storage, bucket)
    assert fault.fired == 1


@pytest.mark.parametrize("size_bytes", [9, 12 * MIB])
def test_foreign_file_is_not_taken_as_own(size_bytes, storage, bucket, monkeypatch):
    """A later attempt cleared the upload away, and the key holds other bytes."""

    def gone(**_):
        bucket.put(BELOW + "a/1", bytes(size_bytes))
        raise ClientError({"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, "complete")

    monkeypatch.setattr(storage._bucket._client.api, "complete_multipart_upload", gone)
    with pytest.raises(StorageError, match="its upload no longer exists"):
        storage.write("a/1", io.BytesIO(LARGE), len(LARGE))
    assert bucket.get(BELOW + "a/1") == bytes(size_bytes)
    assert bucket.uploads() == []


@pytest.mark.parametrize("operation", ["upload_part", "complete_multipart_upload"])
def test_upload_cleared_by_later_attempt_is_error(operation, storage, bucket, monkeypatch):
    def gone(**_):
        raise ClientError({"Error": {"Code": "NoSuchUpload"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, operation)

    monkeypatch.setattr(storage._bucket._client.api, operation, gone)
    with pytest.raises(StorageError, match="its upload no longer exists"):
        storage.write("a/1", io.BytesIO(LARGE), len(LARGE))
    assert bucket.get(BELOW + "a/1") is None


def test_parts_that_fail_together_end_the_write(storage, bucket, monkeypatch):
    """Each gives its memory back: who fills the next part waits for that, and would for ever."""
    together = threading.Barrier(4)  # as many as are on their way at once

    def denied(**_):
        together.wait(60)
        raise ClientError(
            {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "UploadPart"
        )

    monkeypatch.setattr(storage._bucket._client.api, "upload_part", denied)
    told = []

    def write():
        with pytest.raises(StorageError) as error:
            storage.write("a/1", io.BytesIO(bytes(9 * PART)), 9 * PART)
        told.append(error.value)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(60)
    assert len(told) == 1
    assert bucket.uploads() == []


def test_an_interpreter_that_ends_waits_for_no_server(storage, bucket, monkeypatch):
    """What an interrupted upload leaves is a later start's to clear."""

    class Interrupted:
        def readinto(self, buffer):
            raise KeyboardInterrupt

    monkeypatch.setattr(storage._bucket, "abort_upload", lambda *_: pytest.fail("it asks the server"))
    with pytest.raises(KeyboardInterrupt):
        storage.write("a/1", Interrupted(), len(LARGE))
    assert bucket.uploads() == [BELOW + "a/1"]


def test_an_upload_that_fails_leaves_no_parts(storage, proxy, bucket):
    with pytest.raises(StorageError, match="announced"):
        storage.write("a/1", io.BytesIO(LARGE[:-1]), len(LARGE))
    assert bucket.uploads() == []
    assert bucket.get(BELOW + "a/1") is None


def test_only_own_lost_uploads_are_aborted(storage, proxy, bucket):
    """Another file's key begins with this one's."""
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key=BELOW + "a/10")
    storage._bucket._retry._wait = lambda seconds: None  # no real waiting
    fault = proxy.inject(RequestFault("reset_after", method="POST", path="*uploads*"))
    storage.write("a/1", io.BytesIO(LARGE), len(LARGE))
    assert fault.fired == 1
    assert bucket.uploads() == [BELOW + "a/10"]


def test_failed_upload_is_aborted_although_uploads_cannot_be_listed(storage, proxy, bucket):
    storage._bucket._retry._wait = lambda seconds: None  # no real waiting
    lost = proxy.inject(RequestFault("reset_after", method="POST", path="*uploads*"))
    unlisted = proxy.inject(RequestFault("denied", method="GET", path="*uploads*"))
    with pytest.raises(StorageError, match="announced"):
        storage.write("a/1", io.BytesIO(LARGE[:-1]), len(LARGE))
    assert (lost.fired, unlisted.fired) == (1, 1)
    assert bucket.uploads() == [BELOW + "a/1"]  # the one whose id was lost


def test_buffers_are_kept_after_a_failure(storage, monkeypatch):
    made = []
    monkeypatch.setattr(source, "touched", lambda size_bytes: made.append(size_bytes) or memoryview(bytearray(PART)))
    for key in ("a/1", "a/2"):
        with pytest.raises(StorageError, match="announced"):
            storage.write(key, io.BytesIO(LARGE[:-1]), len(LARGE))
    assert made == [PART] * -(-len(LARGE) // PART)


def test_no_memory_for_buffers_is_storage_error_and_leaves_no_upload(storage, bucket, monkeypatch):
    def touched(size_bytes):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("ckptkit.storage.source.touched", touched)
    with pytest.raises(StorageError, match="Cannot allocate memory"):
        storage.write("a/1", io.BytesIO(LARGE), len(LARGE))
    assert bucket.uploads() == []


def test_unabortable_parts_are_cleared_by_later_start(storage, proxy, bucket, caplog):
    fault = proxy.inject(RequestFault("denied", method="DELETE"))
    with pytest.raises(StorageError, match="announced"):
        storage.write("checkpoints/a000002-x/1", io.BytesIO(LARGE[:-1]), len(LARGE))
    assert fault.fired == 1
    assert "a later start will" in caplog.text
    assert bucket.uploads() == [BELOW + "checkpoints/a000002-x/1"]
    assert storage.clear_unfinished("checkpoints/", lambda key: "a000001" in key) == 0
    assert storage.clear_unfinished("frozen/", lambda key: True) == 0
    assert storage.clear_unfinished("checkpoints/", lambda key: "a000002" in key) == 1
    assert bucket.uploads() == []


def test_outage_within_patience_only_delays(storage, proxy, bucket, caplog):
    proxy.down()
    waited = threading.Event()
    storage._bucket._retry._wait = lambda seconds: waited.set()  # no real waiting; tells that it was tried
    writer = threading.Thread(target=lambda: storage.write("a/1", io.BytesIO(LARGE), len(LARGE)))
    writer.start()
    assert waited.wait(60)
    proxy.up()
    writer.join(60)
    assert bucket.get(BELOW + "a/1") == LARGE


def test_python_s_random_state_belongs_to_training(storage, proxy, bucket):
    random.seed(7)
    before = random.getstate()
    fault = proxy.inject(RequestFault("503", times=None, probability=0.3, rng=random.Random(3)))
    for call in CALLS:
        if call is not cleared:
            call(storage, bucket)
            storage.delete(["a/1"])
    assert fault.fired > 3
    assert random.getstate() == before


@pytest.mark.parametrize("times", [1, 2])
def test_expired_keys_are_requested_anew(proxy, bucket, times):
    """Of one request, too, however often they expire."""
    given = []

    def keys():
        given.append({"key": "testing", "secret": "testing", "token": f"token-{len(given)}"})
        return given[-1]

    options = {"endpoint_url": proxy.endpoint, "credentials": keys}
    storage = open_storage(f"s3://{bucket.name}/runs/vit", options)
    storage._bucket._retry._wait = lambda seconds: None  # no real waiting
    fault = proxy.inject(RequestFault("expired", times=times))
    written(storage, bucket)
    assert fault.fired == times
    assert len(given) == 1 + times


def test_parts_are_sent_from_a_few_buffers(storage, proxy, bucket, monkeypatch):
    """Four buffers however large the file: each part's memory is one that an earlier part had."""
    seen = []
    put_part = storage._bucket.put_part

    def watched(key, upload, number, data, stop):
        seen.append(data.obj)
        return put_part(key, upload, number, data, stop)

    monkeypatch.setattr(storage._bucket, "put_part", watched)
    size = 9 * PART
    storage.write("a/1", io.BytesIO(bytes(size)), size)
    assert len(seen) == 9
    assert len({id(one) for one in seen}) == 4
    assert {len(one) for one in seen} == {PART}
