"""Stores a run root in a bucket of S3 or of a store that speaks its protocol.

`create` publishes with one conditional put (``If-None-Match: *``), or with a lease where the server ignores the
condition; this is tested once and a lease is logged. After a lost reply, a conditional put may report its own file as
an existing one. A large file appears whole or not at all: its parts are sent from a few reused buffers, and a failed
upload is aborted, by a later start if that fails, too.

A request ends by its deadline, or a read timeout after it, wherever a server stalls; only a server that sends a byte of
a header or a listing now and then can make it longer. Nothing is cached. Any thread may call it.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from ckptkit.core.worker import Lanes, Latch, each_of
from ckptkit.errors import StorageError
from ckptkit.scrubber import learn, learn_url, scrubbed
from ckptkit.storage.lease import PROBE, Lease
from ckptkit.storage.protocol import Listing
from ckptkit.storage.s3.errors import EXPIRED, Retry, Transient, code_of, raise_as_ours, status_of
from ckptkit.storage.s3.options import OBS_ENDPOINTS, OBS_SECRETS, Client, S3Options, connect, connect_obs
from ckptkit.storage.written_stream import ByteStream, ReusedMemory, SizedStream

_log = logging.getLogger("ckptkit")

_MOST_PARTS = 10_000  # the limit of the S3 API for a multipart upload
_MARK = "ckptkit-upload"  # metadata of an object that was uploaded in parts
_BEYOND_THE_END = {"InvalidRange", "416"}
_BLOCK_BYTES = 1 << 20
_SPAN = re.compile(r"bytes (\d+)-(\d+)/.*")


def open_s3(scheme: str, path: str, storage_options: Mapping[str, Any]) -> S3Storage:
    """Open the run root ``bucket/prefix`` of the scheme ``s3``, ``s3a`` or ``obs``; see `S3Options`. Sends nothing.

    Raises:
        StorageError: If the path names no folder in a bucket, or the options are invalid.
    """
    learn(*(os.environ.get(name) for name in OBS_SECRETS))
    for name in OBS_ENDPOINTS:
        learn_url(os.environ.get(name))
    options = S3Options.of(storage_options, scheme)
    bucket, _, prefix = path.partition("/")
    prefix = prefix.removesuffix("/")
    if "@" in bucket or ":" in bucket:
        raise StorageError(f"a {scheme}:// URL must not contain keys: give key and secret in storage_options")
    if "?" in path:
        raise StorageError(f"a {scheme}:// URL must not have a query: leave out what follows the question mark")
    if not prefix.isprintable():
        raise StorageError(f"{scheme}://{bucket}/... has characters that cannot be printed")
    if not bucket or not prefix or "//" in f"/{prefix}/":
        raise StorageError(
            f"{scheme}://{path} names no folder in a bucket: give {scheme}://bucket/folder, one folder for each run"
        )
    client = connect_obs(options) if scheme == "obs" else connect(options)
    return S3Storage(f"{scheme}://{bucket}/{prefix}", client, Retry(options.patience), options)


class UploadGoneError(StorageError): ...


class S3Storage:
    """Stores objects below the prefix of ``url``, which has no slash at its end."""

    is_remote = True

    def __init__(self, url: str, client: Client, retry: Retry, options: S3Options) -> None:
        self.url = url
        self._bucket, _, prefix = url.partition("://")[2].partition("/")
        self._below = f"{prefix}/" if prefix else ""
        self._client = client
        self._retry = retry
        self._written_with = options.s3_additional_kwargs
        self._part_bytes = options.default_block_size
        self._lanes = options.max_concurrency
        self._memory = ReusedMemory(self._lanes)
        self._lease = Lease(self, settle=options.settle)
        self._probing = threading.Lock()
        self._has_conditions: bool | None = None

    @property
    def window_bytes(self) -> int:
        """Two rounds of parts, so that lanes seldom wait for the slowest part."""
        return 2 * self._lanes * self._part_bytes

    def probe(self) -> None:
        """Check that objects can be put and deleted here, and whether the server honours conditions."""
        self._conditional()
        try:
            self.delete([f"{PROBE}-absent"])
        except StorageError as error:
            _log.warning("%s. Saves continue, but retention cannot remove any checkpoint", error)

    def list(self, folder: str, prefix: str = "") -> Listing:
        below = f"{folder}/" if folder else ""
        folders: set[str] = set()
        files: dict[str, int] = {}
        for sizes, prefixes in self._pages(below + prefix, "/"):
            folders.update(key[len(below) : -1] for key in prefixes)
            files.update({key[len(below) :]: size for key, size in sizes.items() if key != below})
        return Listing(frozenset(folders), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        # Cloud consoles make an object whose key ends in a slash for a folder.
        return {key: size for sizes, _ in self._pages(prefix) for key, size in sizes.items() if not key.endswith("/")}

    def exists(self, key: str) -> bool:
        return self._metadata(key) is not None

    def read(self, key: str, max_bytes: int) -> bytes:
        data = bytearray(max_bytes + 1)
        count = self._get_into(key, [memoryview(data)], 0)
        return bytes(data[:count])

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        parts = _in_parts(buffers, self._part_bytes)
        if not parts:
            if not self.exists(key):
                raise FileNotFoundError(f"there is no {key} in {self.url}")
            return 0
        if len(parts) == 1:
            return self._get_into(key, parts[0], offset_bytes)
        stop = Latch()

        def fetch(number: int) -> int:
            return self._get_into(key, parts[number], offset_bytes + number * self._part_bytes, stop)

        return sum(each_of(range(len(parts)), fetch, threads=self._lanes, few=1, stop=stop.open))

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        source = SizedStream(stream, size_bytes, self._where(key))
        if self.exists(key):
            raise StorageError(f"could not write {self._where(key)}: it exists, and nothing is ever overwritten")
        if size_bytes > self._part_bytes:
            self._write_parts(key, source, size_bytes)
            return
        data = memoryview(bytearray(size_bytes))
        source.fill(data)
        source.expect_end()
        self.put(key, data)

    def _write_parts(self, key: str, source: SizedStream, size_bytes: int) -> None:
        part_bytes = max(self._part_bytes, -(-size_bytes // _MOST_PARTS))
        tags = [""] * -(-size_bytes // part_bytes)
        token = secrets.token_hex(16)
        arguments = {"Key": self._at(key), "Metadata": {_MARK: token}, **self._written_with}
        # After a lost reply, there may be another upload, without parts; a later start aborts it.
        begun = self._send("begin to write", key, "create_multipart_upload", arguments, needs="UploadId")
        upload = {"Key": self._at(key), "UploadId": begun["UploadId"]}
        try:
            with self._memory.lent(part_bytes, min(self._lanes, len(tags))) as buffers, Lanes(self._lanes) as lanes:

                def put(number: int, buffer: memoryview, part_bytes: int) -> None:
                    verb, part = f"write part {number + 1} of", {**upload, "PartNumber": number + 1}
                    body = buffer[:part_bytes]
                    answer = self._send(verb, key, "upload_part", part, body=body, needs="ETag", stop=lanes.stop)
                    tags[number] = str(answer["ETag"])

                source.send(put, lanes, buffers)
                source.expect_end()
                lanes.finish()
            parts = {"Parts": [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(tags, 1)]}
            whole = {**upload, "MultipartUpload": parts}
            try:
                self._send("complete", key, "complete_multipart_upload", whole, needs="ETag")
            except UploadGoneError:
                # Perhaps only a reply was lost: an earlier try has made the object.
                if (self._metadata(key) or {}).get(_MARK) != token:
                    raise
        except Exception:  # and not Ctrl-C: an interrupted process must not wait for a server
            try:
                self._abort(key, upload)
            except StorageError as also:
                _log.warning("could not abort a failed upload; a later start will abort it: %s", also)
            raise

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Write a file in one request, replacing an existing one unless ``if_absent``; also for the lease."""
        arguments = {"Key": self._at(key), **self._written_with, **({"IfNoneMatch": "*"} if if_absent else {})}
        self._send("write", key, "put_object", arguments, body=data, needs="ETag")

    def create(self, key: str, data: bytes) -> None:
        if self._conditional():
            self.put(key, data, if_absent=True)
        else:
            self._lease.create(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        # One request per key: for the call that takes a thousand, stores other than Amazon's want other checksums.
        stop = Latch()

        def remove(key: str) -> None:
            with suppress(FileNotFoundError):
                self._send("delete", key, "delete_object", {"Key": self._at(key)}, may_be_absent=True, stop=stop)

        each_of([*dict.fromkeys(keys)], remove, few=1, stop=stop.open)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Abort dead uploads, whose parts cost space and are not listed; returns how many."""
        dead = [(key, upload) for key, upload in self._uploads(prefix) if is_dead(key)]
        for key, upload in dead:
            self._abort(key, upload)
        return len(dead)

    def _conditional(self) -> bool:
        """Return whether the server honours ``If-None-Match``; tests it once."""
        with self._probing:
            if self._has_conditions is None:
                self._has_conditions = self._honours_conditions()
                if not self._has_conditions:
                    _log.warning(
                        "%s ignores If-None-Match. A lease replaces it, and each save waits for it. If a request "
                        "takes longer than the settle time, two jobs may both continue: run only one job on this "
                        "root",
                        self.url,
                    )
            return self._has_conditions

    def _honours_conditions(self) -> bool:
        # The object stays: once it exists, one refused put is the answer, even if other processes probe, too.
        for _ in range(2):
            try:
                self.put(PROBE, secrets.token_bytes(8), if_absent=True)
            except FileExistsError:
                return True
            except StorageError as error:
                status = status_of(error.__cause__) if isinstance(error.__cause__, ClientError) else 0
                if status == 501:
                    return False
                if status != 400:
                    raise
                # 400 may mean anything. If it is the condition that is refused, a put without it succeeds.
                self.put(PROBE, secrets.token_bytes(8))
        return False

    def _pages(self, prefix: str, delimiter: str = "") -> Iterator[tuple[Mapping[str, int], Sequence[str]]]:
        """Yield, for up to 1000 keys that begin with ``prefix``, sizes by key, and common prefixes with their slash."""
        # The first version of the call: stores other than Amazon's may lack the second one.
        arguments = {"Prefix": self._at(prefix), **({"Delimiter": delimiter} if delimiter else {})}
        used: set[str] = set()  # a set, since some servers make up tokens, which have no order
        while True:
            # An answer without this element is not a listing, and must never be taken for an empty run.
            answer = self._send("list", prefix, "list_objects", arguments, needs="IsTruncated")
            files = {entry["Key"]: int(entry["Size"]) for entry in answer.get("Contents", ())}
            folders = [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
            foreign = next((key for key in (*files, *folders) if not key.startswith(self._at(prefix))), None)
            if foreign is not None:
                raise StorageError(f"could not list {self._where(prefix)}: the server lists {foreign!r} below it")
            at = len(self._below)
            yield {key[at:]: size for key, size in files.items()}, [folder[at:] for folder in folders]
            if not answer["IsTruncated"]:
                return
            last = answer.get("NextMarker") or max((*files, *folders), default=None)
            if last is None or last in used:
                raise StorageError(
                    f"could not list {self._where(prefix)}: the server's pages do not continue after "
                    f"{arguments.get('Marker')!r}"
                )
            used.add(last)
            arguments["Marker"] = last

    def _uploads(self, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the key of every unfinished upload whose key begins with ``prefix``, and what names the upload."""
        begin: dict[str, str] = {}
        while True:
            arguments = {"Prefix": self._at(prefix), **begin}
            try:
                answer = self._send("list uploads of", prefix, "list_multipart_uploads", arguments)
            except UploadGoneError:
                return  # rclone answers NoSuchUpload if there is none
            for upload in answer.get("Uploads", ()):
                # Some servers ignore the prefix and list everything.
                if upload["Key"].startswith(self._at(prefix)):
                    yield upload["Key"][len(self._below) :], {name: upload[name] for name in ("Key", "UploadId")}
            after = {
                "KeyMarker": answer.get("NextKeyMarker", ""),
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }
            if not answer.get("IsTruncated") or after == begin:
                return
            begin = after

    def _abort(self, key: str, upload: Mapping[str, str]) -> None:
        with suppress(UploadGoneError):
            self._send("abort", key, "abort_multipart_upload", upload)

    def _metadata(self, key: str) -> Mapping[str, str] | None:
        """Return the metadata of an object, with lower-case names; None if there is no object."""
        # Not HEAD: its failures have no body that says what is wrong.
        arguments = {"Key": self._at(key), "Range": "bytes=0-0"}
        try:
            answer = self._send("look at", key, "get_object", arguments, needs="ETag", may_be_absent=True)
        except FileNotFoundError:
            return None
        except StorageError as error:
            if code_of(error.__cause__) in _BEYOND_THE_END:
                return {}  # an empty object, which has no mark: only multipart uploads have one
            raise
        answer["Body"].close()
        return {name.lower(): value for name, value in answer["Metadata"].items()}

    def _get_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int, stop: Latch | None = None) -> int:
        """Fill ``buffers``, which hold at least one byte, from ``offset_bytes`` on; returns the bytes received."""
        room = sum(map(len, buffers))
        arguments = {"Key": self._at(key), "Range": f"bytes={offset_bytes}-{offset_bytes + room - 1}"}

        def receive(answer: Mapping[str, Any], until: float) -> int:
            size_bytes = _size_of_part(answer, offset_bytes)
            if size_bytes is None or size_bytes > room:
                raise StorageError(f"could not read {self._where(key)}: the server does not support reading a part")
            with answer["Body"] as raw:
                received = self._receive(raw, buffers, size_bytes, until)
            if received != size_bytes:
                raise TimeoutError(f"the answer ended after {received} of {size_bytes} bytes")
            return received

        try:
            # Without an ETag, it is a proxy's page, which would be taken for the file.
            return int(
                self._send(
                    "read", key, "get_object", arguments, needs="ETag", take=receive, may_be_absent=True, stop=stop
                )
            )
        except StorageError as error:
            if code_of(error.__cause__) in _BEYOND_THE_END:
                return 0
            raise

    def _receive(self, raw: Any, buffers: Sequence[memoryview], size_bytes: int, until: float) -> int:
        received = 0
        for buffer in buffers:
            at = 0
            while at < len(buffer) and received < size_bytes:
                self._check(until)
                data = raw.read1(min(_BLOCK_BYTES, len(buffer) - at))  # only what has arrived
                if not data:
                    return received
                buffer[at : at + len(data)] = data
                at += len(data)
                received += len(data)
        return received

    def _send(
        self,
        verb: str,
        key: str,
        operation: str,
        arguments: Mapping[str, Any],
        *,
        body: bytes | memoryview | None = None,
        needs: str = "",
        take: Callable[[Mapping[str, Any], float], Any] = lambda answer, until: answer,
        may_be_absent: bool = False,
        stop: Latch | None = None,
    ) -> Any:
        """Send an operation of botocore's client, again while that may help; return what ``take`` makes of the answer.

        An answer without the element ``needs`` is a proxy's page. ``take`` gets the time by which it must end, too.
        """
        what, credentials = f"{verb} {self._where(key)}", self._client.credentials

        def send(until: float) -> Any:
            keys = credentials.keys if credentials is not None else None
            sent = {"Bucket": self._bucket, **arguments}
            if body is not None:
                is_large = len(body) > _BLOCK_BYTES
                sent["Body"] = _SentBody(body, lambda: self._check(until)) if is_large else bytes(body)
            try:
                answer = getattr(self._client.api, operation)(**sent)
                if needs and needs not in answer:
                    raise TimeoutError(f"the answer did not come from the storage: it has no {needs}")
                return take(answer, until)
            except (ClientError, BotoCoreError) as error:
                if code_of(error) == "NoSuchUpload":
                    raise UploadGoneError(
                        f"could not {what}: its upload no longer exists. Another process that took over this run "
                        "removed it, or a lifecycle rule of the bucket did"
                    ) from error
                if code_of(error) in EXPIRED and credentials is not None and credentials.renew(keys):
                    raise Transient(str(error)) from error
                raise_as_ours(error, what, may_be_absent=may_be_absent)
            except StorageError:
                raise
            except (HTTPError, OSError) as error:  # while a body came in
                raise Transient(str(error)) from error

        with scrubbed():
            return self._retry.call(what, send, stop)

    def _check(self, until: float) -> None:
        if self._retry.monotonic() >= until:
            raise TimeoutError("the request took longer than request_timeout")

    def _at(self, key: str) -> str:
        return self._below + key

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}"


class _SentBody:
    """Presents memory as the file that botocore sends, and calls ``check`` before every block."""

    def __init__(self, data: bytes | memoryview, check: Callable[[], None]) -> None:
        self._data = memoryview(data)
        self._check = check
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, size: int | None = None) -> memoryview:
        # The HTTP library asks for 16 KiB but sends whatever it gets: larger blocks save a thousand iterations.
        self._check()
        wanted = _BLOCK_BYTES if size is not None and size >= 0 else len(self._data)
        block = self._data[self._at : self._at + wanted]
        self._at += len(block)
        return block

    def seek(self, offset: int) -> int:
        self._at = offset
        return self._at

    def tell(self) -> int:
        return self._at


def _size_of_part(answer: Mapping[str, Any], offset_bytes: int) -> int | None:
    """Return how many bytes from ``offset_bytes`` on the answer holds; None if it gives no size or another range."""
    span = _SPAN.fullmatch(answer.get("ContentRange", ""))
    if span is not None:
        return int(span[2]) - int(span[1]) + 1 if int(span[1]) == offset_bytes else None
    # Some servers send the right part without Content-Range, as if it were the whole file.
    return int(answer["ContentLength"]) if "ContentLength" in answer else None


def _in_parts(buffers: Sequence[memoryview], part_bytes: int) -> list[list[memoryview]]:
    """Split the memory of ``buffers`` into parts of ``part_bytes``; the last one may be shorter."""
    parts: list[list[memoryview]] = []
    room = 0
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            if not room:
                parts.append([])
                room = part_bytes
            piece = buffer[at : at + room]
            parts[-1].append(piece)
            at += len(piece)
            room -= len(piece)
    return parts
