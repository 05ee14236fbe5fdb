"""Stores a run root in a bucket of S3 or of a store that speaks its protocol.

Guarantees: when `write` or `create` returns, the file is as durable as the store makes it. `create` publishes with one
conditional put (``If-None-Match: *``), or with a lease where the server ignores the condition; this is tested once and
a lease is logged. Files are sent in parts from a few reused buffers, and received into the caller's memory. Nothing is
cached. Any thread may call it; it uses its own threads to send and receive parts and to delete.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence

from botocore.exceptions import ClientError

from ckptkit.core.worker import Lanes, Latch, each_of
from ckptkit.errors import StorageError
from ckptkit.storage.lease import PROBE, SETTLE, Lease
from ckptkit.storage.protocol import Listing
from ckptkit.storage.s3.errors import status_of
from ckptkit.storage.s3.multipart import Upload
from ckptkit.storage.s3.options import LANES, PART_BYTES
from ckptkit.storage.s3.part_memory import PartMemory
from ckptkit.storage.s3.requests import Bucket
from ckptkit.storage.source import ByteStream, Source

_log = logging.getLogger("ckptkit")
_MOST_PARTS = 10_000  # the limit of the S3 API for a multipart upload


class S3Storage:
    """Stores objects below ``prefix`` in ``bucket``.

    Args:
        url: The URL as the user typed it.
        bucket: Sends the requests.
        prefix: Prefix of all keys, without a slash at either end; may be empty.
        part_bytes: Size of a part, for files that are sent or fetched in parts.
        lanes: Number of parts that are transferred at once.
        lease: Makes the lease that replaces conditional puts.
    """

    def __init__(
        self,
        url: str,
        bucket: Bucket,
        prefix: str,
        *,
        part_bytes: int = PART_BYTES,
        lanes: int = LANES,
        lease: Callable[[S3Storage], Lease] = lambda storage: Lease(storage, settle=SETTLE),
    ) -> None:
        self._url = url
        self._bucket = bucket
        self._below = f"{prefix}/" if prefix else ""
        self._part_bytes = part_bytes
        self._lanes = lanes
        self._memory = PartMemory(lanes)
        self._lease = lease(self)
        self._probing = threading.Lock()
        self._has_conditions: bool | None = None

    @property
    def url(self) -> str:
        """The run root as the user typed it."""
        return self._url

    @property
    def is_remote(self) -> bool:
        """True: a bucket is reached over a network."""
        return True

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
        """List the entries directly below ``folder`` whose names begin with ``prefix``."""
        below = f"{self._below}{folder}/" if folder else self._below
        folders: set[str] = set()
        files: dict[str, int] = {}
        for page in self._bucket.pages(below + prefix, "/"):
            folders.update(one[len(below) : -1] for one in page.folders)
            files.update({key[len(below) :]: size for key, size in page.files.items() if key != below})
        return Listing(frozenset(folders), files)

    def walk(self, prefix: str) -> Mapping[str, int]:
        """Return the sizes in bytes of all files whose keys begin with ``prefix``."""
        pages = self._bucket.pages(self._below + prefix)
        # Cloud consoles make an object whose key ends in a slash for a folder.
        return {
            key[len(self._below) :]: size for page in pages for key, size in page.files.items() if not key.endswith("/")
        }

    def exists(self, key: str) -> bool:
        """Return whether the file exists."""
        return self._bucket.mark(self._below + key) is not None

    def read(self, key: str, max_bytes: int) -> bytes:
        """Return the content of ``key``, cut after ``max_bytes + 1`` bytes."""
        data = bytearray(max_bytes + 1)
        count = self._bucket.get_into(self._below + key, [memoryview(data)], 0)
        return bytes(data[:count])

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """Fill ``buffers`` with the bytes from ``offset_bytes`` on, in concurrent ranges; returns the bytes read."""
        parts = _in_parts(buffers, self._part_bytes)
        if not parts:
            if not self.exists(key):
                raise FileNotFoundError(f"there is no {key} in {self._url}")
            return 0
        if len(parts) == 1:
            return self._bucket.get_into(self._below + key, parts[0], offset_bytes)
        stop = Latch()

        def fetch(number: int) -> int:
            at = offset_bytes + number * self._part_bytes
            return self._bucket.get_into(self._below + key, parts[number], at, stop)

        return sum(each_of(range(len(parts)), fetch, threads=self._lanes, few=1, stop=stop.open))

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write a new object, in parts if it is large."""
        where = f"{self._url}/{key}"
        source = Source(stream, size_bytes, where)
        if self.exists(key):
            raise StorageError(f"could not write {where}: it exists, and nothing is ever overwritten")
        if size_bytes > self._part_bytes:
            self._write_parts(key, source, size_bytes)
            return
        with self._memory.lent(1, self._part_bytes) as (buffer,):
            data = buffer[:size_bytes]
            source.fill(data)
            source.expect_end()
            self._bucket.put(self._below + key, data)

    def _write_parts(self, key: str, source: Source, size_bytes: int) -> None:
        part_bytes = max(self._part_bytes, -(-size_bytes // _MOST_PARTS))
        upload = Upload(self._bucket, self._below + key)
        # In this order: the lanes must end before their memory is lent to another file.
        with self._memory.lent(self._lanes, part_bytes) as buffers, upload, Lanes(self._lanes) as lanes:
            upload.send(source, lanes, buffers)
            source.expect_end()
            lanes.finish()
            upload.complete()

    def put(self, key: str, data: bytes) -> None:
        """Write a file, replacing an existing one; for the lease."""
        self._bucket.put(self._below + key, data)

    def create(self, key: str, data: bytes) -> None:
        """Publish ``data`` at ``key`` unless it exists."""
        if self._conditional():
            self._bucket.put(self._below + key, data, if_absent=True)
        else:
            self._lease.create(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove ``keys``."""
        # One request per key: for the call that takes a thousand, stores other than Amazon's want other checksums.
        stop = Latch()
        each_of([*dict.fromkeys(keys)], lambda key: self._bucket.delete(self._below + key, stop), few=1, stop=stop.open)

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Abort dead uploads, whose parts cost space and are not listed; returns how many."""
        dead = [
            (key, upload)
            for key, upload in self._bucket.uploads(self._below + prefix)
            if is_dead(key[len(self._below) :])
        ]
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
                        self._url,
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
