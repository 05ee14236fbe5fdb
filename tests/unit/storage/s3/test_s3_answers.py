"""An answer that is not the storage's own is no answer: nothing is concluded from a gateway's page, or from less."""

import io
import random
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore import exceptions as botocore
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from support.clock import Clock
from urllib3 import HTTPResponse

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError
from ckptkit.storage import open_storage
from ckptkit.storage.s3 import storage as s3
from ckptkit.storage.s3.errors import Patience, Retry, Transient, raise_as_ours

PAGE = b"<html><head><title>404</title></head><body>default backend - 404</body></html>"
LIST = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</ListBucketResult>'
EMPTY_LIST = LIST % b"<IsTruncated>false</IsTruncated>"
KEYS = {"key": "testing", "secret": "testing"}
NOBODY = "http://127.0.0.1:1"
TAG = {"ETag": "x"}


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()


NO_SUCH_KEY = (404, error("NoSuchKey"), {})
TAKEN, GONE = (412, error("PreconditionFailed"), {}), (204, b"", {})


class Server:
    def __init__(self, storage, reply=None) -> None:
        self.reply, self.requests = reply, 0
        storage._client.api.meta.events.register_first("before-send.s3", self.answer)

    def answer(self, request, **_):
        status, body, headers = self.reply(request) if callable(self.reply) else self.reply
        self.requests += 1
        stream = body if isinstance(body, io.BytesIO) else io.BytesIO(body)
        headers = {"Content-Length": str(len(stream.getvalue())), **headers}
        raw = HTTPResponse(stream, headers=headers, status=status, preload_content=False)
        return AWSResponse(request.url, status, headers, raw)


def opened(**options):
    made = open_storage("s3://bucket/runs/vit", {**KEYS, **options})
    clock = Clock()
    made._retry = Retry(Patience(), monotonic=clock, wait=clock.wait, rng=random.Random(1))
    return made


@pytest.fixture
def storage():
    return opened(endpoint_url=NOBODY)


def refused(call, match=None, kind=StorageError):
    with pytest.raises(kind, match=match) as caught:
        call()
    return caught.value


def reads(storage):
    return (
        lambda: storage.read("a", 1000),
        lambda: storage.exists("a"),
        lambda: storage.read_into("a", [memoryview(bytearray(5))]),
        lambda: storage.write("a", io.BytesIO(b"x"), 1),
    )


def pages(listed):
    """Reply with the page for the request's marker: files, folders, and the next marker, True if none is named."""

    def reply(request):
        files, folders, marker = listed(parse_qs(urlsplit(request.url).query).get("marker", [""])[0])
        parts = [f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in files]
        parts += [f"<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>" for key in folders]
        parts += [f"<IsTruncated>{str(bool(marker)).lower()}</IsTruncated>"]
        parts += [f"<NextMarker>{marker}</NextMarker>"] if isinstance(marker, str) else []
        return 200, LIST % "".join(parts).encode(), {}

    return reply


def test_pages_are_followed_by_last_name_or_token(storage):
    below = "runs/vit/checkpoints/"
    unmarked = {
        "": ([f"{below}1"], [f"{below}2/", f"{below}3/"], True),
        f"{below}3/": ([f"{below}4", f"{below}5"], [], True),
        f"{below}5": ([f"{below}6"], [], False),
    }
    server = Server(storage, pages(unmarked.__getitem__))
    listing = storage.list("checkpoints")
    assert (listing.folders, dict(listing.files)) == ({"2", "3"}, dict.fromkeys("1456", 1))
    server.reply = pages(lambda marker: (["runs/vit/a/", "runs/vit/a/1"], [], False))
    assert (dict(storage.list("a").files), dict(storage.walk("a/"))) == ({"1": 1}, {"a/1": 1})  # consoles make "a/"
    order = {"": ("1", "zz"), "zz": ("2", "aa"), "aa": ("3", "mm"), "mm": ("4", False)}  # tokens have no order
    server.reply = pages(lambda marker: ([f"runs/vit/a/{order[marker][0]}"], [], order[marker][1]))
    assert sorted(storage.walk("a/")) == ["a/1", "a/2", "a/3", "a/4"]


def test_invalid_endless_or_foreign_pages_are_errors(storage):
    server = Server(storage)
    for files, folders, marker, message in [
        ([], [], True, "pages do not continue after"),
        (["runs/vit/a/1"], [], True, "pages do not continue after"),
        (["runs/vit/a/1"], [], "runs/vit/a/1", "pages do not continue after"),
        (["runs/vit/a/1", "runs/vit/b/1"], [], False, "the server lists 'runs/vit/b/"),
        (["runs/vit/a/1"], ["runs/vit/b/"], False, "the server lists 'runs/vit/b/"),
    ]:
        server.reply, server.requests = pages(lambda _, page=(files, folders, marker): page), 0
        refused(lambda: storage.walk("a/"), message)
        assert server.requests <= 2, files
    for status, body in [(200, b""), (200, PAGE), (200, LIST % b"<Name>bucket</Name>"), (204, b"<Other/>")]:
        server.reply, server.requests = (status, body, {}), 0
        for call in (lambda: storage.list("attempts"), lambda: storage.walk("checkpoints/")):
            refused(call)  # an invalid listing is not an empty one
        assert server.requests > 4, body  # it may have been a gateway's page: it was asked again


def test_a_run_under_any_name_is_found_again(bucket):
    for prefix in ["a b", "a%20b", "50%", "a+b", "\u4e2d\u6587", "a&b<c>"]:
        storage = open_storage(f"s3://{bucket.name}/{prefix}", {**KEYS, "endpoint_url": bucket.endpoint})
        storage.create("a/1", b"x")
        assert (storage.list("a").files, storage.walk("")) == ({"1": 1}, {"a/1": 1, "probe": 8}), prefix
        assert storage.read("a/1", 9) == b"x", prefix


def test_unfinished_uploads_of_all_pages_are_aborted(storage):
    aborted, asked = [], []

    def reply(request):
        if request.method == "DELETE":
            aborted.append(request.url.partition("uploadId=")[2])
            return GONE
        number = 2 if "upload-id-marker=id-1" in request.url else 1
        more = "<NextKeyMarker>runs/vit/a/1</NextKeyMarker><NextUploadIdMarker>id-1</NextUploadIdMarker>"
        upload = f"<Upload><Key>runs/vit/a/{number}</Key><UploadId>id-{number}</UploadId></Upload>"
        end = f"<IsTruncated>{str(number == 1).lower()}</IsTruncated>{more if number == 1 else ''}"
        return 200, f"<ListMultipartUploadsResult>{end}{upload}</ListMultipartUploadsResult>".encode(), {}

    server = Server(storage, reply)
    assert storage.clear_unfinished("b/", lambda key: True) == 0  # it lists everything, whatever is asked for
    assert storage.clear_unfinished("a/", lambda key: not asked.append(key)) == 2
    assert (asked, aborted) == (["a/1", "a/2"], ["id-1", "id-2"])
    endless = b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>"
    # The first is how rclone says that there is none; the second does not go on.
    for server.reply in ((404, error("NoSuchUpload"), {}), (200, endless, {})):
        server.requests = 0
        assert storage.clear_unfinished("a/", lambda key: True) == 0
        assert server.requests <= 2


def test_gateways_404_and_untagged_answers_are_no_answers(storage):
    server = Server(storage)
    for body in (b"", PAGE):
        server.reply = (404, body, {})
        others = (lambda: storage.list("a"), lambda: storage.create("a", b"x"), lambda: storage.delete(["a"]))
        for call in (*reads(storage), *others):
            refused(call)
    server.reply = (200, PAGE, {})
    for call in (*reads(storage), lambda: storage.put("a", b"x")):
        before = server.requests
        refused(call, r"ETag|parse")
        assert server.requests - before > 1


def test_missing_key_answer_counts_only_for_keys(storage):
    """Other calls than those for a key take "no such key" for an error."""
    server = Server(storage, NO_SUCH_KEY)
    assert not storage.exists("a")
    storage.delete(["a"])
    for call in (lambda: storage.read("a", 10), lambda: storage.read_into("a", [memoryview(bytearray(0))])):
        refused(call, "there is no|no a in s3://bucket/runs/vit", FileNotFoundError)
    for call in (lambda: storage.list("a"), lambda: storage.put("a", b"x")):
        refused(call, "addressing")  # what OBS says to the wrong style
    server.reply = (416, error("InvalidRange"), {})  # an empty file exists
    assert storage.exists("a")
    server.requests = 0
    refused(lambda: storage.write("a", io.BytesIO(b"x"), 1), "it exists, and nothing is ever overwritten")
    assert server.requests == 1


def test_connections_are_given_back_and_marks_may_be_capitalized(storage):
    bodies = []

    def reply(_):
        bodies.append(io.BytesIO(b"12345"))
        return 206, bodies[-1], {**TAG, "Content-Range": "bytes 0-4/5", "X-Amz-Meta-Ckptkit-Upload": "token"}

    Server(storage, reply)
    assert storage._metadata("a") == {"ckptkit-upload": "token"}
    assert storage.read("a", 9) == b"12345"
    assert [body.closed for body in bodies] == [True, True]


def test_a_part_is_taken_only_for_the_part_asked_for(storage):
    server, into = Server(storage, (200, b"12345", TAG)), bytearray(6)
    assert storage.read_into("a", [memoryview(into)], 4) == 5  # without its range
    assert into == b"12345\0"
    for reply in [(200, b"123456789", TAG), (206, b"12345", {**TAG, "Content-Range": "bytes 0-4/9"})]:
        server.reply, into = reply, bytearray(5)
        refused(lambda into=into: storage.read_into("a", [memoryview(into)], 4), "reading a part")
        assert into == bytes(5)
    server.reply, server.requests = (206, b"123", {**TAG, "Content-Range": "bytes 0-4/5"}), 0
    refused(lambda: storage.read_into("a", [memoryview(into)]), "ended after 3 of 5 bytes")
    assert server.requests > 4


def test_huge_file_has_larger_parts(storage, monkeypatch):
    sent, needed = {}, {}

    def send(verb, key, operation, arguments, *, needs, body=None, **_):
        needed[operation] = needs
        if operation == "upload_part":
            sent[arguments["PartNumber"]] = (bytes(body), id(body.obj))
        if operation == "complete_multipart_upload":
            sent["tags"] = [part["ETag"] for part in arguments["MultipartUpload"]["Parts"]]
        return {"UploadId": "id", "ETag": str(arguments.get("PartNumber"))}

    monkeypatch.setattr(storage, "_send", send)
    monkeypatch.setattr(storage, "exists", lambda key: False)
    storage._part_bytes = 4
    for most, size_bytes, parts in [(3, 5, [4, 1]), (3, 12, [4] * 3), (3, 13, [5, 5, 3]), (20, 80, [4] * 20)]:
        monkeypatch.setattr(s3, "_MOST_PARTS", most)
        sent.clear()
        storage.write("a", io.BytesIO(bytes(range(size_bytes))), size_bytes)
        pieces, memory = zip(*(sent[int(tag)] for tag in sent["tags"]), strict=True)
        assert (b"".join(pieces), list(map(len, pieces))) == (bytes(range(size_bytes)), parts)
        assert len(set(memory)) == min(4, len(parts))  # each part's memory is one that an earlier part had
    uploads = {"create_multipart_upload": "UploadId", "upload_part": "ETag", "complete_multipart_upload": "ETag"}
    assert needed == uploads  # an answer without it is a proxy's


def test_an_endpoint_that_redirects_is_named_at_once(monkeypatch):
    amazons = "https://s3.eu-west-1.amazonaws.com"
    rows = [(status, {"endpoint_url": NOBODY}) for status in (301, 302, 307, 308)]
    rows += [(301, {"client_kwargs": {"endpoint_url": url}}) for url in (NOBODY, amazons)] + [(301, {})]
    for status, options in rows:
        if not options:
            monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
        storage = opened(**options)
        server = Server(storage, (status, b"", {"Location": "https://s3.example.com/bucket"}))
        refused(lambda storage=storage: storage.list("a"), r"redirects to https://s3\.example\.com")
        assert server.requests == 1, (status, options)


def test_amazons_redirects_lead_to_the_region(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    storage, hosts, bodies = opened(client_kwargs={"region_name": "us-east-1"}), [], []

    def reply(request):
        hosts.append(urlsplit(request.url).hostname)
        if request.body is not None:
            bodies.append(b"".join(iter(lambda: bytes(request.body.read(16 << 10)), b"")))
        if "eu-north-1" in request.url:
            return 200, EMPTY_LIST, TAG
        return 301, error("PermanentRedirect"), {"x-amz-bucket-region": "eu-north-1"}

    Server(storage, reply)
    assert not storage.walk("a/")
    assert hosts == ["bucket.s3.amazonaws.com", "bucket.s3.eu-north-1.amazonaws.com"]
    data = bytes(range(256)) * (10 << 10)  # several blocks
    second = opened(client_kwargs={"region_name": "us-east-1"})
    Server(second, reply)
    second.put("a", data)
    assert bodies == [data, data]  # a body that is sent again is whole


def test_bodies_that_drip_are_given_up(storage):
    wait = lambda: storage._retry.monotonic.wait(50)  # noqa: E731

    class Dripping(io.BytesIO):
        def read(self, size=-1):
            wait()
            return super().read(min(size, 1) if size and size > 0 else 1)

        read1 = read

    def reply(request):
        if request.method == "GET":
            return 206, Dripping(b"12345"), {**TAG, "Content-Range": "bytes 0-4/5"}
        while request.body.read(1 << 14):
            wait()
        return 200, b"", TAG

    server = Server(storage, reply)
    refused(lambda: storage.read_into("a", [memoryview(bytearray(5))]), "longer than request_timeout")
    assert server.requests == 1  # which took as long as there is patience before a first answer
    refused(lambda: storage.put("a", bytes(9 << 20)), "longer than request_timeout")
    assert server.requests == 1


def test_what_nobody_wants_is_not_asked_again(storage):
    server, stop = Server(storage, (503, b"", {})), Latch()
    stop.open()
    calls = [
        lambda: storage._send("write", "a", "upload_part", {"Key": "a", "UploadId": "1", "PartNumber": 1}, stop=stop),
        lambda: storage._get_into("a", [memoryview(bytearray(1))], 0, stop),
    ]
    for asked, call in enumerate(calls, 1):
        refused(call, "tried 1 times")
        assert server.requests == asked


def test_refused_put_or_deletion_is_reported_at_start(storage, caplog):
    """That every put is refused is no answer about conditions."""
    Server(storage, (400, error("InvalidArgument"), {}))
    refused(storage.probe, "could not write s3://bucket/runs/vit/probe: .*InvalidArgument")
    assert (storage._has_conditions, caplog.text) == (None, "")
    storage = opened(endpoint_url=NOBODY)
    Server(storage, lambda request: TAKEN if request.method == "PUT" else (403, error("AccessDenied"), {}))
    storage.probe()
    assert "grant permission to list, read, write and delete" in caplog.text
    assert "Saves continue, but retention cannot remove any" in caplog.text


@pytest.mark.parametrize("first", [(200, b"", TAG), (400, error("BadRequest"), {})], ids=["new", "bad request"])
def test_root_with_conditions_has_no_lease(storage, caplog, first):
    puts, there = [], set()

    def reply(request):
        if request.method != "PUT":
            return GONE
        puts.append((urlsplit(request.url).path.rpartition("/")[2], "If-None-Match" in request.headers))
        made = first if len(puts) == 1 else TAKEN if puts[-1][1] and puts[-1][0] in there else (200, b"", TAG)
        there.update([puts[-1][0]] if made[0] == 200 else [])
        return made

    Server(storage, reply)
    storage.probe()
    storage.create("a/1", b"x")
    assert (storage._has_conditions, caplog.text) == (True, "")
    assert puts == [("probe", True), *[("probe", False)] * (first[0] == 400), ("probe", True), ("1", True)]


def test_a_store_without_conditions_gets_a_lease(caplog):
    for refusal, tries in [((501, "NotImplemented"), 1), ((400, "InvalidArgument"), 2)]:
        storage, objects, conditions = opened(endpoint_url=NOBODY), {}, []

        def reply(request, refusal=refusal, objects=objects, conditions=conditions):
            key = urlsplit(request.url).path.removeprefix("/bucket/runs/vit/")
            if request.method == "PUT" and "If-None-Match" in request.headers:
                conditions.append(key)
                return refusal[0], error(refusal[1]), {}
            if request.method == "PUT":
                objects[key] = request.body if isinstance(request.body, bytes) else request.body.read()
                return 200, b"", TAG
            return (200, objects[key], TAG) if key in objects else NO_SUCH_KEY

        caplog.clear()
        Server(storage, reply)
        storage._lease._wait = lambda seconds: None
        storage.create("a/1", b"first")
        refused(lambda storage=storage: storage.create("a/1", b"second"), None, FileExistsError)
        assert objects["a/1"] == b"first"
        assert len(conditions) == tries, refusal
        assert caplog.text.count("s3://bucket/runs/vit ignores If-None-Match. A lease replaces it") == 1


ANSWERS = [
    *[(404, "NoSuchKey", FileNotFoundError), (404, "NoSuchBucket", StorageError), (404, "404", Transient)],
    *[(409, code, Transient) for code in ("ConditionalRequestConflict", "OperationAborted")],
    *[(409, "InvalidBucketState", StorageError), (412, "PreconditionFailed", FileExistsError)],
    *[(412, "412", FileExistsError), (400, "RequestTimeout", Transient), (400, "BadDigest", Transient)],
    *[(400, code, Transient) for code in ("IncompleteBody", "XAmzContentSHA256Mismatch")],
    *[(400, "ExpiredToken", StorageError), (403, "AccessDenied", StorageError), (429, "TooManyRequests", Transient)],
    *[(500, "InternalError", Transient), (501, "NotImplemented", StorageError), (503, "SlowDown", Transient)],
    *[(507, "InsufficientStorageSpace", StorageError), (412, "ConditionNotMet", FileExistsError)],
]
FAILURES = [
    (botocore.NoCredentialsError(), StorageError, "export AWS_ACCESS_KEY_ID="),
    (botocore.SSLError(endpoint_url="x", error="CERTIFICATE_VERIFY_FAILED"), StorageError, "export AWS_CA_BUNDLE=FILE"),
    (botocore.SSLError(endpoint_url="x", error="EOF"), Transient, "EOF"),
    (botocore.EndpointConnectionError(endpoint_url="http://x"), Transient, "http://x"),
    (botocore.ReadTimeoutError(endpoint_url="http://x"), Transient, "http://x"),
    (botocore.IncompleteReadError(actual_bytes=1, expected_bytes=2), Transient, "1"),
    (botocore.ParamValidationError(report="no such"), StorageError, "(?s)could not write a: .*no such"),
]


def test_each_error_means_one_thing():
    rows = [
        (ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Put"), meant, None)
        for status, code, meant in ANSWERS
    ]
    for failure, meant, words in [*rows, *FAILURES]:
        caught = refused(lambda failure=failure: raise_as_ours(failure, "write a", may_be_absent=True), words, meant)
        assert type(caught) is meant, failure
