"""An answer that is not the storage's own is no answer: nothing is concluded from a gateway's page, or from less."""

from __future__ import annotations

import io
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
    SSLError,
)
from support.runs.bucket import Clock
from urllib3 import HTTPResponse

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import open_storage
from ckptkit.storage.s3 import storage as s3
from ckptkit.storage.s3.retry import Patience, Retry, Transient, raise_as_ours
from ckptkit.testing.state import NumpyRun

PAGE = b"<html><head><title>404</title></head><body>default backend - 404</body></html>"
LIST = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</ListBucketResult>'
KEYS = {"key": "testing", "secret": "testing"}
NOBODY = "http://127.0.0.1:1"


class Server:
    """Answers every request in the server's place."""

    def __init__(self, storage, status, body=b"", headers=()) -> None:
        self.storage, self.status, self.body, self.headers = storage, status, body, dict(headers)
        self.requests = 0
        storage._bucket._client.api.meta.events.register_first("before-send.s3", self.answer)

    def answer(self, request, **_):
        self.requests += 1
        headers = {"Content-Length": str(len(self.body)), **self.headers}
        raw = HTTPResponse(io.BytesIO(self.body), headers=headers, status=self.status, preload_content=False)
        return AWSResponse(request.url, self.status, headers, raw)


@pytest.fixture
def storage():
    return opened(endpoint_url=NOBODY)


def opened(**options):
    made = open_storage("s3://bucket/runs/vit", {**KEYS, **options})
    clock = Clock()
    made._bucket._retry = Retry(Patience(), monotonic=clock, wait=clock.wait, rng=random.Random(1))
    return made


EMPTY = {"nothing": b"", "html": PAGE, "no-end": LIST % b"<Name>bucket</Name>", "other": b"<Other/>"}


@pytest.mark.parametrize("body", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("status", [200, 204])
def test_invalid_listing_is_not_an_empty_one(storage, status, body):
    server = Server(storage, status, body)
    with pytest.raises(StorageError):
        storage.list("attempts")
    with pytest.raises(StorageError):
        storage.walk("checkpoints/")
    assert server.requests > 4  # it may have been a gateway's page: it was asked again


class UploadsOnPages(Server):
    """Lists two unfinished uploads on a page each, and aborts them."""

    def __init__(self, storage) -> None:
        super().__init__(storage, 200)
        self.aborted = []

    def answer(self, request, **_):
        if request.method == "DELETE":
            self.aborted.append(request.url.partition("uploadId=")[2])
            self.status, self.body = 204, b""
        else:
            number = 2 if "upload-id-marker=id-1" in request.url else 1
            more = b"<IsTruncated>true</IsTruncated><NextKeyMarker>runs/vit/a/1</NextKeyMarker>"
            more += b"<NextUploadIdMarker>id-1</NextUploadIdMarker>"
            one = b"<Upload><Key>runs/vit/a/%d</Key><UploadId>id-%d</UploadId></Upload>" % (number, number)
            end = more if number == 1 else b"<IsTruncated>false</IsTruncated>"
            self.status = 200
            self.body = b"<ListMultipartUploadsResult>%s%s</ListMultipartUploadsResult>" % (end, one)
        return super().answer(request)


def test_unfinished_uploads_of_all_pages_are_aborted(storage):
    server = UploadsOnPages(storage)
    assert storage.clear_unfinished("b/", lambda key: True) == 0  # it lists everything, whatever is asked for
    assert server.aborted == []
    asked = []
    assert storage.clear_unfinished("a/", lambda key: not asked.append(key)) == 2
    assert asked == ["a/1", "a/2"]
    assert server.aborted == ["id-1", "id-2"]


def test_an_objects_mark_may_be_capitalized(storage):
    """Servers spell headers as they like."""
    headers = {"ETag": '"x"', "Content-Range": "bytes 0-0/9", "X-Amz-Meta-Ckptkit-Upload": "token"}
    Server(storage, 206, b"a", headers)
    assert storage._bucket.mark("runs/vit/a") == {"ckptkit-upload": "token"}


class Pages(Server):
    """Lists a page for each marker, without saying where the next one begins: that is the last name of this one."""

    def __init__(self, storage, pages) -> None:
        super().__init__(storage, 200)
        self.pages = pages

    def answer(self, request, **_):
        marker = parse_qs(urlsplit(request.url).query).get("marker", [""])[0]
        files, folders, is_cut = self.pages(marker)
        parts = [f"<Contents><Key>{one}</Key><Size>1</Size></Contents>" for one in files]
        parts += [f"<CommonPrefixes><Prefix>{one}</Prefix></CommonPrefixes>" for one in folders]
        self.body = LIST % f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{''.join(parts)}".encode()
        return super().answer(request)


def test_page_that_ends_with_a_folder_is_followed(storage):
    below = "runs/vit/checkpoints/"
    pages = {
        "": ([f"{below}1"], [f"{below}2/", f"{below}3/"], True),
        f"{below}3/": ([f"{below}4", f"{below}5"], [], True),
        f"{below}5": ([f"{below}6"], [], False),
    }
    server = Pages(storage, pages.__getitem__)
    listing = storage.list("checkpoints")
    assert (listing.folders, dict(listing.files)) == ({"2", "3"}, dict.fromkeys("1456", 1))
    assert server.requests == 3


def test_what_consoles_make_for_folders_is_no_file(storage):
    Pages(storage, lambda marker: (["runs/vit/a/", "runs/vit/a/1"], [], False))
    assert dict(storage.list("a").files) == {"1": 1}
    assert dict(storage.walk("a/")) == {"a/1": 1}


@pytest.mark.parametrize(
    ("files", "folders"), [(["runs/vit/a/1", "runs/vit/b/1"], []), (["runs/vit/a/1"], ["runs/vit/b/"])]
)
def test_listing_of_another_place_is_refused(storage, files, folders):
    Pages(storage, lambda marker: (files, folders, False))
    for call in (lambda: storage.list("a"), lambda: storage.walk("a/")):
        with pytest.raises(StorageError, match="the server lists 'runs/vit/b/"):
            call()


@pytest.mark.parametrize("files", [[], ["runs/vit/a/1"]])
def test_pages_that_do_not_go_on_are_errors(storage, files):
    markers = iter(["", "runs/vit/a/1"])  # and none after that: who asks on would ask for ever
    server = Pages(storage, lambda marker: (files, [], next(markers) == marker))
    with pytest.raises(StorageError, match="do not continue"):
        storage.walk("a/")
    assert server.requests <= 2


def test_keys_beside_those_asked_for_are_an_error(storage):
    foreign = b"<IsTruncated>false</IsTruncated><Contents><Key>other/run/a</Key><Size>1</Size></Contents>"
    Server(storage, 200, LIST % foreign)
    with pytest.raises(StorageError, match="other/run/a"):
        storage.list("attempts")
    with pytest.raises(StorageError, match="other/run/a"):
        storage.walk("attempts/")


@pytest.mark.parametrize("prefix", ["a b", "a%20b", "a%25b", "50%", "a+b", "\u4e2d\u6587", "a&b<c>"])
def test_a_run_under_any_name_is_found_again(prefix, bucket):
    names = []
    for _ in range(2):
        run = NumpyRun()
        root = open_storage(f"s3://{bucket.name}/{prefix}", {**KEYS, "endpoint_url": bucket.endpoint})
        with CheckpointManager(root) as manager:
            assert manager.restore(run).checkpoint == (names[-1] if names else None)
            for _ in run.train_until(run.batches + 3):
                pass
            names.append(manager.save(run).result())
            assert manager.latest().name == names[-1]


@pytest.mark.parametrize("body", [b"", PAGE])
def test_a_gateways_404_is_not_absence(storage, body):
    Server(storage, 404, body)
    for call in (
        lambda: storage.read("a", 10),
        lambda: storage.exists("a"),
        lambda: storage.list("a"),
        lambda: storage.read_into("a", [memoryview(bytearray(5))]),
        lambda: storage.create("a", b"x"),
        lambda: storage.delete(["a"]),
    ):
        with pytest.raises(StorageError):
            call()


NO_SUCH_KEY = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


def test_missing_key_answer_counts_only_for_keys(storage):
    """Other calls than those for a key take "no such key" for an error."""
    Server(storage, 404, NO_SUCH_KEY)
    assert not storage.exists("a")
    with pytest.raises(FileNotFoundError):
        storage.read("a", 10)
    storage.delete(["a"])
    for call in (lambda: storage.list("a"), lambda: storage._bucket.put("a", b"x")):
        with pytest.raises(StorageError, match="addressing"):  # what OBS says to the wrong style
            call()


def test_connections_of_looks_and_reads_are_given_back(storage):
    """A start looks thousands of times."""
    raws = []

    def answer(request, **_):
        raws.append(HTTPResponse(io.BytesIO(b"12345"), status=206, preload_content=False))
        return AWSResponse(request.url, 206, {"ETag": "x", "Content-Range": "bytes 0-4/5"}, raws[-1])

    storage._bucket._client.api.meta.events.register_first("before-send.s3", answer)
    assert storage.exists("a")
    assert storage.read("a", 9) == b"12345"
    assert [raw.closed for raw in raws] == [True, True]


def test_a_gateways_page_is_no_file(storage):
    server = Server(storage, 200, PAGE)
    for call in (
        lambda: storage.read("a", 1000),
        lambda: storage.exists("a"),
        lambda: storage.read_into("a", [memoryview(bytearray(5))]),
        lambda: storage.write("a", io.BytesIO(b"x"), 1),
    ):
        with pytest.raises(StorageError, match="ETag"):
            call()
    assert server.requests > 8


def test_an_answer_without_a_tag_has_written_nothing(storage):
    server = Server(storage, 200, PAGE)
    with pytest.raises(StorageError, match="ETag"):
        storage._bucket.put("a", b"x")
    with pytest.raises(StorageError, match=r"ETag|parse"):
        storage._bucket.complete_upload("a", "1", ["x"])
    assert server.requests > 4


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_an_endpoint_that_redirects_is_told_at_once(storage, status):
    server = Server(storage, status, b"", {"Location": "https://s3.example.com/bucket"})
    with pytest.raises(StorageError, match=r"redirects to https://s3\.example\.com"):
        storage.list("a")
    assert server.requests == 1


@pytest.mark.parametrize("named", ["client_kwargs", "environment", "Amazon's own"])
def test_redirects_are_told_wherever_endpoint_is_named(named, monkeypatch):
    endpoint = "https://s3.eu-west-1.amazonaws.com" if named == "Amazon's own" else NOBODY
    if named == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    server = Server(
        opened(**({} if named == "environment" else {"client_kwargs": {"endpoint_url": endpoint}})),
        *(301, b"", {"Location": "https://s3.example.com/bucket"}),
    )
    with pytest.raises(StorageError, match=r"redirects to https://s3\.example\.com"):
        server.storage.list("a")
    assert server.requests == 1


class OtherRegion(Server):
    """Amazon's, of which only one region has the bucket."""

    def __init__(self, storage) -> None:
        super().__init__(storage, 301, b"<Error><Code>PermanentRedirect</Code></Error>")
        self.headers["x-amz-bucket-region"] = "eu-north-1"
        self.hosts, self.bodies = [], []

    def answer(self, request, **_):
        self.hosts.append(urlsplit(request.url).hostname)
        if request.body is not None:
            self.bodies.append(b"".join(iter(lambda: bytes(request.body.read(16 << 10)), b"")))
        if "eu-north-1" in request.url:
            self.status, self.body = 200, LIST % b"<IsTruncated>false</IsTruncated>"
            self.headers["ETag"] = "x"
        return super().answer(request)


def test_amazons_redirects_lead_to_the_region(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    server = OtherRegion(opened(client_kwargs={"region_name": "us-east-1"}))
    assert not server.storage.walk("a/")
    assert server.hosts == ["bucket.s3.amazonaws.com", "bucket.s3.eu-north-1.amazonaws.com"]


def test_body_that_is_sent_again_is_whole(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    server = OtherRegion(opened(client_kwargs={"region_name": "us-east-1"}))
    data = bytes(range(256)) * (10 << 10)  # several blocks
    server.storage._bucket.put("a", data)
    assert server.bodies == [data, data]


def test_answer_with_wrong_range_is_refused(storage):
    Server(storage, 206, b"12345", {"Content-Range": "bytes 0-4/9", "ETag": "x"})
    with pytest.raises(StorageError, match="reading a part"):
        storage.read_into("a", [memoryview(bytearray(5))], 4)


def test_a_part_may_come_without_its_range(storage):
    Server(storage, 200, b"12345", {"ETag": "x"})
    into = bytearray(6)
    assert storage.read_into("a", [memoryview(into)], 4) == 5
    assert into == b"12345\0"
    with pytest.raises(StorageError, match="reading a part"):  # the whole file instead
        storage.read_into("a", [memoryview(bytearray(4))], 4)


class Parts:
    """A bucket that takes uploads in parts."""

    def __init__(self) -> None:
        self.parts = {}

    def mark(self, key):
        return None

    def begin_upload(self, key, mark):
        return "id", False

    def put_part(self, key, upload, number, data, stop):
        self.parts[number] = bytes(data)
        return str(number)

    def complete_upload(self, key, upload, tags):
        self.file = b"".join(self.parts[int(tag)] for tag in tags)


@pytest.mark.parametrize(("size_bytes", "parts"), [(5, [4, 1]), (12, [4, 4, 4]), (13, [5, 5, 3]), (22, [8, 8, 6])])
def test_huge_file_has_larger_parts(storage, monkeypatch, size_bytes, parts):
    """A file has 10,000 at most."""
    monkeypatch.setattr(s3, "_MOST_PARTS", 3)
    storage._part_bytes, storage._bucket = 4, Parts()
    storage.write("a", io.BytesIO(bytes(range(size_bytes))), size_bytes)
    assert [len(storage._bucket.parts[number]) for number in range(1, len(parts) + 1)] == parts
    assert storage._bucket.file == bytes(range(size_bytes))


class Ranges(Server):
    """Has one file, and gives what is asked of it."""

    data = bytes(range(100))

    def __init__(self, storage) -> None:
        super().__init__(storage, 206)

    def answer(self, request, **_):
        asked = request.headers["Range"]
        first, last = map(int, (asked if isinstance(asked, str) else asked.decode()).removeprefix("bytes=").split("-"))
        self.body = self.data[first : last + 1]
        self.status = 206 if self.body else 416
        self.headers = {"ETag": "x", "Content-Range": f"bytes {first}-{first + len(self.body) - 1}/{len(self.data)}"}
        if not self.body:
            self.body = b"<Error><Code>InvalidRange</Code><Message>no</Message></Error>"
        return super().answer(request)


@pytest.mark.parametrize("start", [0, 13, 60, 99, 100, 130])
def test_parts_are_read_from_anywhere_in_file(storage, start):
    server = Ranges(storage)
    storage._part_bytes = 7
    buffers = [bytearray(10), bytearray(0), bytearray(25)]
    count = storage.read_into("a", [memoryview(one) for one in buffers], start)
    assert b"".join(buffers)[:count] == server.data[start : start + 35]
    assert server.requests == 5


def test_missing_file_is_missing_without_room_too(storage):
    Server(storage, 404, NO_SUCH_KEY)
    with pytest.raises(FileNotFoundError, match="no a in s3://bucket/runs/vit"):
        storage.read_into("a", [memoryview(bytearray(0))])


@pytest.mark.parametrize("marker", [b"", b"<NextMarker>runs/vit/a/1</NextMarker>"], ids=["unmarked", "marked"])
def test_pages_that_repeat_are_an_error(storage, marker):
    one = b"<Contents><Key>runs/vit/a/1</Key><Size>1</Size></Contents>"
    Server(storage, 200, LIST % (b"<IsTruncated>true</IsTruncated>" + one + marker))
    with pytest.raises(StorageError, match="pages do not continue after 'runs/vit/a/1'"):
        storage.walk("a/")


class PagesWithTokens(Server):
    """Lists four keys on a page each; the marker of the next page is no key, as with moto."""

    def __init__(self, storage) -> None:
        super().__init__(storage, 200)
        self.tokens = [b"", b"zz", b"aa", b"mm"]

    def answer(self, request, **_):
        asked = parse_qs(urlsplit(request.url).query).get("marker", [""])[0].encode()
        number = self.tokens.index(asked) + 1
        more = number < len(self.tokens)
        self.body = LIST % (
            b"<IsTruncated>%s</IsTruncated><NextMarker>%s</NextMarker>"
            b"<Contents><Key>runs/vit/a/%d</Key><Size>1</Size></Contents>"
            % ((b"true", self.tokens[number], number) if more else (b"false", b"", number))
        )
        return super().answer(request)


def test_markers_may_be_tokens_in_any_order(storage):
    server = PagesWithTokens(storage)
    assert sorted(storage.walk("a/")) == ["a/1", "a/2", "a/3", "a/4"]
    assert server.requests == 4


def test_no_such_upload_means_nothing_to_clear(storage):
    """How rclone says that there is none."""
    Server(storage, 404, b"<Error><Code>NoSuchUpload</Code><Message>none</Message></Error>")
    assert storage.clear_unfinished("a/", lambda key: True) == 0


class Probed(Server):
    """Answers puts with one status, and deletions with another."""

    def __init__(self, storage, put, delete) -> None:
        super().__init__(storage, 200)
        self.by_method = {"PUT": put, "DELETE": delete}

    def answer(self, request, **_):
        self.status, code = self.by_method[request.method]
        self.body = b"<Error><Code>%s</Code><Message>no</Message></Error>" % code if code else b""
        return super().answer(request)


TAKEN, GONE = (412, b"PreconditionFailed"), (204, b"")


def test_refused_deletion_is_told_at_start(storage, caplog):
    Probed(storage, TAKEN, (403, b"AccessDenied"))
    storage.probe()
    assert "grant permission to list, read, write and delete" in caplog.text
    assert "retention cannot remove any" in caplog.text


class Conditional(Probed):
    """Honours conditions, and is empty at first."""

    def __init__(self, storage) -> None:
        super().__init__(storage, (200, b""), GONE)
        self.headers["ETag"] = "x"
        self.puts = []

    def answer(self, request, **_):
        made = super().answer(request)
        if request.method == "PUT":
            self.puts.append(urlsplit(request.url).path.rpartition("/")[2])
            self.by_method["PUT"] = TAKEN if self.puts == ["probe"] else (200, b"")
        return made


def test_new_root_with_conditions_has_no_lease(storage, caplog):
    server = Conditional(storage)
    storage.probe()
    storage.create("a/1", b"x")
    assert caplog.text == ""
    assert server.puts == ["probe", "probe", "1"]


def test_unknown_condition_makes_way_for_a_lease(storage, caplog):
    Probed(storage, (501, b"NotImplemented"), GONE)
    storage.probe()
    assert "ignores If-None-Match. A lease replaces it" in caplog.text


@pytest.mark.parametrize(
    "call",
    [
        lambda bucket, stop: bucket.put_part("a", "id", 1, memoryview(b"x"), stop),
        lambda bucket, stop: bucket.get_into("a", [memoryview(bytearray(1))], 0, stop),
        lambda bucket, stop: bucket.delete("a", stop),
    ],
    ids=["put", "get", "delete"],
)
def test_what_nobody_wants_is_not_asked_again(storage, call):
    """A part of a file of which another part has failed."""
    server, stop = Server(storage, 503), Latch()
    stop.open()
    with pytest.raises(StorageError, match="tried 1 times"):
        call(storage._bucket, stop)
    assert server.requests == 1


class Expired(Server):
    """Refuses the first request, while another one that it refused before has new keys asked for."""

    def __init__(self, storage) -> None:
        super().__init__(storage, 400, b"<Error><Code>ExpiredToken</Code><Message>no</Message></Error>")
        self.credentials = storage._bucket._client.credentials

    def answer(self, request, **_):
        made = super().answer(request)
        if self.requests == 1:
            assert self.credentials.renew(self.credentials.generation)
            self.status, self.body = 200, LIST % b"<IsTruncated>false</IsTruncated>"
        return made


def test_keys_that_another_request_renewed_are_tried():
    """Asked again, the source gives the same ones."""
    asked = []
    storage = opened(
        endpoint_url=NOBODY,
        credentials=lambda: asked.append(1) or {"key": "a", "secret": str(min(2, len(asked)))},
    )
    server = Expired(storage)
    assert not storage.walk("a/")
    assert (server.requests, len(asked)) == (2, 2)


def test_an_unknown_authority_names_the_option(storage):
    def refuse(**_):
        raise SSLError(endpoint_url="https://host", error="CERTIFICATE_VERIFY_FAILED")

    storage._bucket._client.api.meta.events.register_first("before-send.s3", refuse)
    with pytest.raises(StorageError, match=r"client_kwargs=\{'verify': FILE\}"):
        storage.list("a")


def test_answer_that_ends_early_is_no_short_file(storage):
    server = Server(storage, 206, b"123", {"Content-Range": "bytes 0-4/5", "ETag": "x"})
    with pytest.raises(StorageError, match="ended after 3 of 5 bytes"):
        storage.read_into("a", [memoryview(bytearray(5))])
    assert server.requests > 4


def test_whole_file_instead_of_its_part_is_refused(storage):
    Server(storage, 200, b"123456789", {"ETag": "x"})
    buffer = bytearray(5)
    with pytest.raises(StorageError, match="reading a part"):
        storage.read_into("a", [memoryview(buffer)], 4)
    assert buffer == bytes(5)


def test_an_absent_file_is_absent_without_room(storage):
    Server(storage, 404, NO_SUCH_KEY)
    with pytest.raises(FileNotFoundError):
        storage.read_into("a", [memoryview(bytearray())])


NO_SUCH_RANGE = b"<Error><Code>InvalidRange</Code><Message>empty</Message></Error>"


def test_an_empty_file_counts_as_one_that_exists(storage):
    server = Server(storage, 416, NO_SUCH_RANGE)
    assert storage.exists("a")
    with pytest.raises(StorageError, match="it exists, and nothing is ever overwritten"):
        storage.write("a", io.BytesIO(b"x"), 1)
    assert server.requests == 2  # both asked for it, none wrote


# Slow ones


class Dripping(io.BytesIO):
    """Gives a byte in 50 seconds."""

    def __init__(self, data, clock) -> None:
        super().__init__(data)
        self.clock = clock

    def read(self, size=-1):
        self.clock.wait(50)
        return super().read(min(size, 1) if size and size > 0 else 1)

    read1 = read


class Drip(Server):
    def answer(self, request, **_):
        self.requests += 1
        headers = {"Content-Length": "5", "Content-Range": "bytes 0-4/5", "ETag": "x"}
        body = Dripping(b"12345", self.storage._bucket._retry.monotonic)
        raw = HTTPResponse(body, headers=headers, status=206, preload_content=False)
        return AWSResponse(request.url, 206, headers, raw)


def test_answer_that_drips_is_given_up(storage):
    server = Drip(storage, 206)
    with pytest.raises(StorageError, match="longer than request_timeout"):
        storage.read_into("a", [memoryview(bytearray(5))])
    assert server.requests == 1  # which took as long as there is patience before a first answer


class Sipping(Server):
    """Takes a block of a body in 50 seconds."""

    def answer(self, request, **_):
        while request.method == "PUT" and request.body.read(1 << 14):
            self.storage._bucket._retry.monotonic.wait(50)
        return super().answer(request)


def test_body_that_is_taken_slowly_is_given_up(storage):
    server = Sipping(storage, 200, b"", {"ETag": "x"})
    with pytest.raises(StorageError, match="longer than request_timeout"):
        storage._bucket.put("a", bytes(9 << 20))
    assert server.requests == 0


# Stores that lack something


class Unconditional(Server):
    """Knows no conditional put, and says so."""

    def __init__(self, storage, refusal=(501, b"NotImplemented")) -> None:
        super().__init__(storage, 200)
        self.refusal = refusal
        self.objects = {}
        self.conditions = 0

    def answer(self, request, **_):
        key = urlsplit(request.url).path.removeprefix("/bucket/runs/vit/")
        self.status, self.body, self.headers = 200, b"", {"ETag": "x"}
        if request.method == "PUT" and "If-None-Match" in request.headers:
            self.conditions += 1
            self.status, self.body = self.refusal[0], b"<Error><Code>%s</Code></Error>" % self.refusal[1]
        elif request.method == "PUT":
            self.objects[key] = request.body if isinstance(request.body, bytes) else request.body.read()
        elif key in self.objects:
            self.body = self.objects[key]
        else:
            self.status, self.body = 404, NO_SUCH_KEY
        return super().answer(request)


@pytest.mark.parametrize(
    ("refusal", "tries"),
    [((501, b"NotImplemented"), 1), ((400, b"InvalidArgument"), 2), ((400, b"BadRequest"), 2), ((400, b""), 2)],
)
def test_a_store_without_conditions_gets_a_lease(storage, caplog, refusal, tries):
    server = Unconditional(storage, refusal)
    storage._lease._wait = lambda seconds: None
    for number in (1, 2):
        storage.create(f"a/{number}", b"first")
        with pytest.raises(FileExistsError):
            storage.create(f"a/{number}", b"second")
        assert server.objects[f"a/{number}"] == b"first"
    assert server.conditions == tries
    assert [record.message for record in caplog.records if "If-None-Match" in record.message] == [
        "s3://bucket/runs/vit ignores If-None-Match. A lease replaces it, and each save waits for it. If a "
        "request takes longer than the settle time, two jobs may both continue: run only one job on this root"
    ]


@pytest.mark.parametrize("put", [(400, b"InvalidArgument"), (400, b"AuthorizationHeaderMalformed")])
def test_refusal_of_every_put_is_no_answer_about_conditions(storage, caplog, put):
    Probed(storage, put, GONE)
    with pytest.raises(StorageError, match=f"could not write s3://bucket/runs/vit/probe: .*{put[1].decode()}"):
        storage.probe()
    assert storage._has_conditions is None
    assert caplog.text == ""


def test_one_bad_request_does_not_bring_a_lease(storage, caplog):
    class Once(Conditional):
        def answer(self, request, **_):
            if "If-None-Match" in request.headers and not self.puts:
                self.by_method["PUT"] = (400, b"BadRequest")
                made = super().answer(request)
                self.by_method["PUT"] = (200, b"")
                return made
            self.by_method["PUT"] = TAKEN if "If-None-Match" in request.headers else (200, b"")
            return Probed.answer(self, request)

    Once(storage)
    storage.probe()
    assert storage._has_conditions is True
    assert caplog.text == ""


class Undeletable(Server):
    def answer(self, request, **_):
        taken = request.method == "PUT"
        self.status = 412 if taken else 403
        self.body = b"<Error><Code>%s</Code></Error>" % (b"PreconditionFailed" if taken else b"AccessDenied")
        return super().answer(request)


def test_probe_warns_where_nothing_can_be_deleted(storage, caplog):
    Undeletable(storage, 403)
    storage.probe()
    assert "Saves continue, but retention cannot remove any" in caplog.text


def test_an_upload_has_no_more_parts_than_allowed(storage, monkeypatch):
    monkeypatch.setattr(s3, "_MOST_PARTS", 4)
    monkeypatch.setattr(storage, "_part_bytes", 10)
    bucket, sent = storage._bucket, {}
    monkeypatch.setattr(bucket, "mark", lambda key: None)
    monkeypatch.setattr(bucket, "begin_upload", lambda key, mark: ("id", False))
    monkeypatch.setattr(bucket, "complete_upload", lambda key, upload, tags: sent.update(tags=tags))
    monkeypatch.setattr(
        bucket,
        "put_part",
        lambda key, upload, number, data, stop: sent.update({number: bytes(data)}) or f"tag-{number}",
    )
    data = bytes(range(43))
    storage.write("a", io.BytesIO(data), len(data))
    assert sent.pop("tags") == ["tag-1", "tag-2", "tag-3", "tag-4"]
    assert b"".join(sent[number] for number in sorted(sent)) == data


# Keys that end in the middle


def test_parts_beside_each_other_share_the_new_keys(proxy, bucket):
    from support.servers.faults import RequestFault

    asked = []

    def keys():
        asked.append(1)
        return {**KEYS, "token": f"token-{len(asked)}"}

    options = {"endpoint_url": proxy.endpoint, "credentials": keys, "default_block_size": 5 << 20}
    storage = open_storage(f"s3://{bucket.name}/runs/vit", options)
    fault = proxy.inject(RequestFault("expired", method="PUT", times=4))
    data = bytes(21 << 20)
    storage.write("a", io.BytesIO(data), len(data))
    assert fault.fired == 4
    assert bucket.get("runs/vit/a") == data


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>over</Message></Error>"


@pytest.mark.parametrize("error", [FileNotFoundError("token file"), KeyError("token"), RuntimeError("down")])
def test_failing_credentials_source_is_a_storage_error(error, bucket):
    """It says nothing about whether a file exists."""
    given = []

    def keys():
        if given:
            raise error
        given.append(1)
        return KEYS

    storage = open_storage(f"s3://{bucket.name}/a", {"endpoint_url": "http://127.0.0.1:1", "credentials": keys})
    clock = Clock()
    storage._bucket._retry = Retry(Patience(), monotonic=clock, wait=clock.wait, rng=random.Random(1))
    Server(storage, 400, EXPIRED)
    with pytest.raises(StorageError, match="credentials= failed"):
        storage.exists("x")


def test_keys_are_used_until_expiry_while_source_fails():
    from ckptkit.storage.s3.options import Keys, RenewedCredentials

    now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]
    first = Keys("a", "b", "t", now[0] + timedelta(hours=1))
    given = [first]

    def source():
        if not given:
            raise RuntimeError("down")
        return given.pop()

    credentials = RenewedCredentials(source, lambda: now[0])
    now[0] += timedelta(minutes=58)
    with ThreadPoolExecutor(2) as pool:
        assert [one.token for one in pool.map(lambda _: credentials.get_frozen_credentials(), range(4))] == ["t"] * 4
    now[0] += timedelta(minutes=3)
    with pytest.raises(StorageError, match=r"RuntimeError at .*, in source"):
        credentials.get_frozen_credentials()


@pytest.mark.parametrize(
    ("status", "code", "meant"),
    [
        (404, "NoSuchKey", FileNotFoundError),
        (404, "NoSuchBucket", StorageError),
        (404, "404", Transient),
        (409, "ConditionalRequestConflict", Transient),
        (409, "OperationAborted", Transient),
        (409, "InvalidBucketState", StorageError),
        (412, "PreconditionFailed", FileExistsError),
        (412, "412", FileExistsError),
        (400, "RequestTimeout", Transient),
        (400, "BadDigest", Transient),
        (400, "IncompleteBody", Transient),
        (400, "XAmzContentSHA256Mismatch", Transient),
        (400, "ExpiredToken", StorageError),
        (403, "AccessDenied", StorageError),
        (429, "TooManyRequests", Transient),
        (500, "InternalError", Transient),
        (501, "NotImplemented", StorageError),
        (503, "SlowDown", Transient),
        (507, "InsufficientStorageSpace", StorageError),
    ],
)
def test_each_error_answer_means_one_thing(status, code, meant):
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises((FileNotFoundError, FileExistsError, StorageError, Transient)) as caught:
        raise_as_ours(ClientError(answer, "PutObject"), "write a", may_be_absent=True)
    assert type(caught.value) is meant


@pytest.mark.parametrize(
    ("error", "meant", "words"),
    [
        (NoCredentialsError(), StorageError, "export AWS_ACCESS_KEY_ID="),
        (SSLError(endpoint_url="x", error="CERTIFICATE_VERIFY_FAILED"), StorageError, "client_kwargs={'verify': FILE}"),
        (SSLError(endpoint_url="x", error="EOF"), Transient, "EOF"),
        (EndpointConnectionError(endpoint_url="http://x"), Transient, "http://x"),
        (ReadTimeoutError(endpoint_url="http://x"), Transient, "http://x"),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), Transient, "1"),
        (ParamValidationError(report="no such"), StorageError, "(?s)could not write a: .*no such"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_failure_without_answer_means_one_thing(error, meant, words):
    with pytest.raises((StorageError, Transient), match=words) as caught:
        raise_as_ours(error, "write a", may_be_absent=True)
    assert type(caught.value) is meant
