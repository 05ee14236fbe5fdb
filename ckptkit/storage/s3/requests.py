"""Sends a run's requests to a bucket, each with a deadline and with retries while they may help.

A request ends by its deadline, or a read timeout after it, wherever a server stalls; only a server that sends a byte of
a header or a listing now and then can make it longer. Absence is FileNotFoundError, a condition that did not hold is
FileExistsError, any other failure is a StorageError. After a lost reply, a conditional put may report its own file as
an existing one. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError
from ckptkit.scrubber import scrubbed
from ckptkit.storage.s3.options import Client
from ckptkit.storage.s3.retry import EXPIRED, Retry, Transient, code_of, raise_as_ours

_T = TypeVar("_T")

_BEYOND_THE_END = {"InvalidRange", "416"}
_GONE = {"NoSuchUpload"}
_BLOCK_BYTES = 1 << 20
_SPAN = re.compile(r"bytes (\d+)-(\d+)/.*")


class UploadGoneError(StorageError): ...


class Bucket:
    """Sends requests to one bucket; ``written_with`` has options of every object written, such as its encryption."""

    def __init__(
        self, name: str, client: Client, retry: Retry, written_with: Mapping[str, Any], *, scheme: str = "s3"
    ) -> None:
        self.name = name
        self._client = client
        self._scheme = scheme
        self._retry = retry
        self._written_with = dict(written_with)

    def pages(self, prefix: str, delimiter: str = "") -> Iterator[tuple[Mapping[str, int], Sequence[str]]]:
        """Yield, for up to 1000 keys that begin with ``prefix``, sizes by key, and common prefixes with their slash."""
        # The first version of the call: stores other than Amazon's may lack the second one.
        arguments = {"Prefix": prefix, **({"Delimiter": delimiter} if delimiter else {})}
        used: set[str] = set()  # a set, since some servers make up tokens, which have no order
        while True:
            # An answer without this element is not a listing, and must never be taken for an empty run.
            answer = self._send("list", prefix, "list_objects", arguments, needs="IsTruncated")
            files = {entry["Key"]: int(entry["Size"]) for entry in answer.get("Contents", ())}
            folders = [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
            foreign = next((key for key in (*files, *folders) if not key.startswith(prefix)), None)
            if foreign is not None:
                raise StorageError(f"could not list {self._where(prefix)}: the server lists {foreign!r} below it")
            yield files, folders
            if not answer["IsTruncated"]:
                return
            last = answer.get("NextMarker") or max((*files, *folders), default=None)
            if last is None or last in used:
                where, at = self._where(prefix), arguments.get("Marker")
                raise StorageError(f"could not list {where}: the server's pages do not continue after {at!r}")
            used.add(last)
            arguments["Marker"] = last

    def mark(self, key: str) -> Mapping[str, str] | None:
        """Return the metadata of an object, with lower-case names; None if there is no object."""

        def request(_: float) -> Mapping[str, str]:
            try:
                # Not HEAD: its failures have no body that says what is wrong.
                answer = self._client.api.get_object(Bucket=self.name, Key=key, Range="bytes=0-0")
            except ClientError as error:
                if code_of(error) in _BEYOND_THE_END:
                    return {}  # an empty object, which has no mark: only multipart uploads have one
                raise
            answer["Body"].close()
            return {name.lower(): value for name, value in _with("ETag", answer)["Metadata"].items()}

        try:
            return self._call(f"look at {self._where(key)}", request, may_be_absent=True)
        except FileNotFoundError:
            return None

    def get_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int, stop: Latch | None = None) -> int:
        """Fill ``buffers``, which hold at least one byte, from ``offset_bytes`` on; returns the bytes received."""
        room = sum(map(len, buffers))
        asked = f"bytes={offset_bytes}-{offset_bytes + room - 1}"

        def request(until: float) -> int:
            try:
                answer = self._client.api.get_object(Bucket=self.name, Key=key, Range=asked)
            except ClientError as error:
                if code_of(error) in _BEYOND_THE_END:
                    return 0
                raise
            _with("ETag", answer)  # else a proxy's page would be taken for the file, which would seem corrupt
            size_bytes = _size_of_part(answer, offset_bytes)
            if size_bytes is None or size_bytes > room:
                raise StorageError(f"could not read {self._where(key)}: the server does not support reading a part")
            with answer["Body"] as raw:
                received = self._receive(raw, buffers, size_bytes, until)
            if received != size_bytes:
                raise TimeoutError(f"the answer ended after {received} of {size_bytes} bytes")
            return received

        return self._call(f"read {self._where(key)}", request, may_be_absent=True, stop=stop)

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

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Write an object in one request; with ``if_absent`` only if the key is free."""
        arguments = {"Key": key, **self._written_with, **({"IfNoneMatch": "*"} if if_absent else {})}
        self._send("write", key, "put_object", arguments, body=data, needs="ETag")

    def delete(self, key: str, stop: Latch | None = None) -> None:
        """Delete an object, if it exists."""
        with suppress(FileNotFoundError):
            self._send("delete", key, "delete_object", {"Key": key}, may_be_absent=True, stop=stop)

    def begin_upload(self, key: str, mark: Mapping[str, str]) -> str:
        """Begin a multipart upload, whose object will have ``mark`` as metadata; returns its id.

        After a lost reply, there may be another upload, without parts; a later start aborts it.
        """
        arguments = {"Key": key, "Metadata": dict(mark), **self._written_with}
        return str(
            self._send("begin to write", key, "create_multipart_upload", arguments, needs="UploadId")["UploadId"]
        )

    def put_part(self, key: str, upload: str, number: int, data: memoryview, stop: Latch | None = None) -> str:
        """Write part ``number``, counted from 1; returns its tag. Raises UploadGoneError if the upload is gone."""
        arguments = {"Key": key, "UploadId": upload, "PartNumber": number}
        verb = f"write part {number} of"
        return str(self._send(verb, key, "upload_part", arguments, body=data, needs="ETag", stop=stop)["ETag"])

    def complete_upload(self, key: str, upload: str, tags: Sequence[str]) -> None:
        """Make the object from the parts with ``tags``, in order. Raises UploadGoneError if the upload is gone."""
        parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(tags, 1)]
        arguments = {"Key": key, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        self._send("complete", key, "complete_multipart_upload", arguments, needs="ETag")

    def abort_upload(self, key: str, upload: str) -> None:
        """Discard an upload and its parts, if the upload exists."""
        with suppress(UploadGoneError):
            self._send("abort", key, "abort_multipart_upload", {"Key": key, "UploadId": upload})

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield key and id of every unfinished upload whose key begins with ``prefix``."""
        begin: dict[str, str] = {}
        while True:
            try:
                answer = self._send("list uploads of", prefix, "list_multipart_uploads", {"Prefix": prefix, **begin})
            except UploadGoneError:
                return  # rclone answers NoSuchUpload if there is none
            for upload in answer.get("Uploads", ()):
                # Some servers ignore the prefix and list everything.
                if upload["Key"].startswith(prefix):
                    yield upload["Key"], upload["UploadId"]
            after = {
                "KeyMarker": answer.get("NextKeyMarker", ""),
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }
            if not answer.get("IsTruncated") or after == begin:
                return
            begin = after

    def _send(
        self,
        verb: str,
        key: str,
        operation: str,
        arguments: Mapping[str, Any],
        *,
        body: bytes | memoryview | None = None,
        needs: str = "",
        may_be_absent: bool = False,
        stop: Latch | None = None,
    ) -> Any:
        send = getattr(self._client.api, operation)

        def request(until: float) -> Any:
            if body is None:
                return _with(needs, send(Bucket=self.name, **arguments))
            sent = _SentBody(body, lambda: self._check(until)) if len(body) > _BLOCK_BYTES else bytes(body)
            return _with(needs, send(Bucket=self.name, Body=sent, **arguments))

        return self._call(f"{verb} {self._where(key)}", request, may_be_absent=may_be_absent, stop=stop)

    def _call(
        self, what: str, request: Callable[[float], _T], *, may_be_absent: bool = False, stop: Latch | None = None
    ) -> _T:
        credentials = self._client.credentials

        def send(until: float) -> _T:
            used = credentials.generation if credentials is not None else 0
            try:
                return request(until)
            except (ClientError, BotoCoreError) as error:
                if code_of(error) in _GONE:
                    raise UploadGoneError(
                        f"could not {what}: its upload no longer exists. Another process that took over this run "
                        "removed it, or a lifecycle rule of the bucket did"
                    ) from error
                if code_of(error) in EXPIRED and credentials is not None and credentials.renew(used):
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

    def _where(self, key: str) -> str:
        return f"{self._scheme}://{self.name}/{key}"


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


def _with(element: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``answer`` if it has ``element``, else raise TimeoutError: a proxy's page lacks the element."""
    if element and element not in answer:
        raise TimeoutError(f"the answer did not come from the storage: it has no {element}")
    return answer
