"""Stores a run root in a bucket of S3 or of a store that speaks its protocol.

`create` publishes with one conditional put (``If-None-Match: *``), or with a lease where the server ignores the
condition; this is tested once and a lease is logged. A large file appears whole or not at all: its parts are sent from
a few reused buffers, and a failed upload is aborted, by a later start if that fails, too. Nothing is cached. Any thread
may call it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from ckptkit.core.worker import Lanes, Latch, each_of
from ckptkit.errors import StorageError
from ckptkit.scrubber import learn, learn_url
from ckptkit.storage.lease import PROBE, Lease
from ckptkit.storage.protocol import Listing
from ckptkit.storage.s3.options import OBS_ENDPOINTS, OBS_SECRETS, S3Options, connect, connect_obs
from ckptkit.storage.s3.requests import Bucket, UploadGoneError
from ckptkit.storage.s3.retry import Retry, status_of
from ckptkit.storage.source import ByteStream, ReusedMemory, SizedStream

_log = logging.getLogger("ckptkit")
_MOST_PARTS = 10_000  # the limit of the S3 API for a multipart upload
_MARK = "ckptkit-upload"  # metadata of an object that was uploaded in parts


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
    client = connect_obs(options) if scheme == "obs" else connect(options, {}, options.keys())
    requests = Bucket(bucket, client, Retry(options.patience), options.s3_additional_kwargs, scheme=scheme)
    return S3Storage(f"{scheme}://{bucket}/{prefix}", requests, prefix, options)


class S3Storage:
    """Stores objects below ``prefix``, which has no slash at either end, in ``bucket``."""

    is_remote = True

    def __init__(self, url: str, bucket: Bucket, prefix: str, options: S3Options) -> None:
        self.url = url
        self._bucket = bucket
        self._below = f"{prefix}/" if prefix else ""
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
            self._bucket.delete(f"{self._below}{PROBE}-absent")
        except StorageError as error:
            _log.warning("%s. Saves continue, but retention cannot remove any checkpoint", error)

    def list(self, folder: str, prefix: str = "") -> Listing:
        below = f"{self._below}{folder}/" if folder else self._below
        folders: set[str] = set()
        files: dict[str, int] = {}
        for sizes, prefixes in self._bucket.pages(below + prefix, "/"):
            folders.update(key[len(below) : -1] for key in prefixes)
            files.update({key[len(below) :]: size for key, size in sizes.items() if key != below})
        return Listing(frozenset(folders), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        pages, below = self._bucket.pages(self._below + prefix), len(self._below)
        # Cloud consoles make an object whose key ends in a slash for a folder.
        return {key[below:]: size for sizes, _ in pages for key, size in sizes.items() if not key.endswith("/")}

    def exists(self, key: str) -> bool:
        return self._bucket.mark(self._below + key) is not None

    def read(self, key: str, max_bytes: int) -> bytes:
        data = bytearray(max_bytes + 1)
        count = self._bucket.get_into(self._below + key, [memoryview(data)], 0)
        return bytes(data[:count])

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        parts = _in_parts(buffers, self._part_bytes)
        if not parts:
            if not self.exists(key):
                raise FileNotFoundError(f"there is no {key} in {self.url}")
            return 0
        if len(parts) == 1:
            return self._bucket.get_into(self._below + key, parts[0], offset_bytes)
        stop = Latch()

        def fetch(number: int) -> int:
            at = offset_bytes + number * self._part_bytes
            return self._bucket.get_into(self._below + key, parts[number], at, stop)

        return sum(each_of(range(len(parts)), fetch, threads=self._lanes, few=1, stop=stop.open))

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        where = f"{self.url}/{key}"
        source = SizedStream(stream, size_bytes, where)
        if self.exists(key):
            raise StorageError(f"could not write {where}: it exists, and nothing is ever overwritten")
        if size_bytes > self._part_bytes:
            self._write_parts(self._below + key, source, size_bytes)
            return
        data = memoryview(bytearray(size_bytes))
        source.fill(data)
        source.expect_end()
        self._bucket.put(self._below + key, data)

    def _write_parts(self, key: str, source: SizedStream, size_bytes: int) -> None:
        part_bytes = max(self._part_bytes, -(-size_bytes // _MOST_PARTS))
        tags = [""] * -(-size_bytes // part_bytes)
        token = secrets.token_hex(16)
        upload = self._bucket.begin_upload(key, {_MARK: token})
        try:
            with self._memory.lent(part_bytes, min(self._lanes, len(tags))) as buffers, Lanes(self._lanes) as lanes:

                def put(number: int, buffer: memoryview, part_bytes: int) -> None:
                    tags[number] = self._bucket.put_part(key, upload, number + 1, buffer[:part_bytes], lanes.stop)

                source.send(put, lanes, buffers)
                source.expect_end()
                lanes.finish()
            try:
                self._bucket.complete_upload(key, upload, tags)
            except UploadGoneError:
                # Perhaps only a reply was lost: an earlier try has made the object.
                if (self._bucket.mark(key) or {}).get(_MARK) != token:
                    raise
        except Exception:  # and not Ctrl-C: an interrupted process must not wait for a server
            try:
                self._bucket.abort_upload(key, upload)
            except StorageError as also:
                _log.warning("could not abort a failed upload; a later start will abort it: %s", also)
            raise

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing an existing one; for the lease."""
        self._bucket.put(self._below + key, data)

    def create(self, key: str, data: bytes) -> None:
        if self._conditional():
            self._bucket.put(self._below + key, data, if_absent=True)
        else:
            self._lease.create(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        # One request per key: for the call that takes a thousand, stores other than Amazon's want other checksums.
        stop = Latch()
        each_of([*dict.fromkeys(keys)], lambda key: self._bucket.delete(self._below + key, stop), few=1, stop=stop.open)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Abort dead uploads, whose parts cost space and are not listed; returns how many."""
        uploads = self._bucket.uploads(self._below + prefix)
        dead = [(key, upload) for key, upload in uploads if is_dead(key[len(self._below) :])]
        for key, upload in dead:
            self._bucket.abort_upload(key, upload)
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
                self._bucket.put(f"{self._below}{PROBE}", secrets.token_bytes(8), if_absent=True)
            except FileExistsError:
                return True
            except StorageError as error:
                status = status_of(error.__cause__) if isinstance(error.__cause__, ClientError) else 0
                if status == 501:
                    return False
                if status != 400:
                    raise
                # 400 may mean anything. If it is the condition that is refused, a put without it succeeds.
                self._bucket.put(f"{self._below}{PROBE}", secrets.token_bytes(8))
        return False


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
