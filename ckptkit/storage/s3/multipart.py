"""Uploads one file into a bucket, in concurrent parts.

Guarantees: the object appears whole or not at all. A failed upload is aborted, so that its parts cost nothing; if the
abort fails, a later start clears it (`ckptkit.storage.Storage.clear_unfinished`). If the reply to a completion is
lost, a token in the object's metadata tells whether the completion took effect. Only the calling thread reads the
source.
"""

from __future__ import annotations

import logging
import queue
import secrets
from collections.abc import Sequence
from types import TracebackType

from typing_extensions import Self

from ckptkit.core.worker import Lanes, Latch
from ckptkit.errors import StorageError
from ckptkit.storage.s3.requests import Bucket
from ckptkit.storage.source import Source

_log = logging.getLogger("ckptkit")
_MARK = "ckptkit-upload"


class Upload:
    """Sends a multipart upload; a context manager that aborts the upload unless it was completed.

    Args:
        bucket: The bucket to upload to.
        key: Key of the object.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._token = secrets.token_hex(16)
        self._id = ""
        self._has_lost = False
        self._tags: list[str] = []
        self._completed = False

    def __enter__(self) -> Self:
        self._id, self._has_lost = self._bucket.begin_upload(self._key, {_MARK: self._token})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            return  # an interrupted process must not wait for a server
        try:
            if not self._completed:
                self._bucket.abort_upload(self._key, self._id)
            if self._has_lost:
                self._abort_lost()
        except StorageError as also:
            _log.warning("could not abort a failed upload; a later start will abort it: %s", also)

    def send(self, source: Source, lanes: Lanes, buffers: Sequence[memoryview]) -> None:
        """Send all of ``source`` in parts as large as ``buffers``; ``lanes`` may still read the buffers afterwards."""
        count = -(-source.left_bytes // len(buffers[0]))
        self._tags = [""] * count
        free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for memory in buffers:
            free.put(memory)
        for number in range(1, count + 1):
            memory = free.get()
            part = memory[: source.fill(memory)]

            def job(number: int = number, memory: memoryview = memory, part: memoryview = part) -> None:
                try:
                    if not lanes.stop.is_open:
                        self._tags[number - 1] = self._put(number, part, lanes.stop)
                finally:
                    free.put(memory)  # also after a failure, since the caller waits for memory before it checks for one

            lanes.submit(job)

    def complete(self) -> None:
        """Complete the upload, which makes the object.

        Raises:
            StorageError: If the object may or may not exist, or the upload is gone.
        """
        try:
            self._bucket.complete_upload(self._key, self._id, self._tags)
        except FileNotFoundError as error:
            if not self._is_ours():
                raise self._gone() from error
            # Only a reply was lost: an earlier try had made the object.
        self._completed = True

    def _put(self, number: int, part: memoryview, stop: Latch) -> str:
        try:
            return self._bucket.put_part(self._key, self._id, number, part, stop)
        except FileNotFoundError as error:
            raise self._gone() from error

    def _gone(self) -> StorageError:
        return StorageError(
            f"could not write {self._key}: its upload no longer exists. Another process that took over this run "
            "removed it, or a lifecycle rule of the bucket did"
        )

    def _abort_lost(self) -> None:
        # No other process writes this key, since it contains the number of this process's attempt.
        for key, upload in self._bucket.uploads(self._key):
            if key == self._key and upload != self._id:
                self._bucket.abort_upload(key, upload)

    def _is_ours(self) -> bool:
        mark = self._bucket.mark(self._key)
        return mark is not None and mark.get(_MARK) == self._token
